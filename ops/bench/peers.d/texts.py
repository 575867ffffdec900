"""How far two programs' answers to the same questions agree."""

FIRST = 8
FIRST_CHARACTERS = 32  # about as many
# Greedy answers of two sound engines part sooner or later, since their roundings differ: of 32,
# 56 to 91 % begin the same in each sound pair seen so far. Those of a broken one part at once:
# 0 to 6 %.
SOUND_SHARE = 0.5


def text_of(tokens, pieces):
    return b"".join(pieces[token] for token in tokens)


def clean(data):
    """Text without what was cut inside a character."""
    text = data.decode("utf-8", "ignore") if isinstance(data, bytes) else data
    return text.replace("\N{REPLACEMENT CHARACTER}", "")


def share(verdicts):
    return sum(verdicts) / len(verdicts) if verdicts else None


def with_texts(answers, texts, pieces):
    """Token lists beside another's texts, which may be longer: shares whose first tokens, and
    all tokens, agree."""
    pairs = list(zip(answers, texts))
    first = [clean(text).startswith(clean(text_of(tokens[:FIRST], pieces)))
             for tokens, text in pairs]
    whole = [clean(text).startswith(clean(text_of(tokens, pieces))) for tokens, text in pairs]
    return {"n": len(pairs), "first": share(first), "all": share(whole)}


def with_tokens(answers, others):
    pairs = list(zip(answers, others))
    return {"n": len(pairs), "first": share([a[:FIRST] == b[:FIRST] for a, b in pairs]),
            "all": share([a == b for a, b in pairs])}


def with_strings(texts, others):
    """The same of two programs of which both give texts."""
    pairs = list(zip(texts, others))
    return {"n": len(pairs), "first": share([a[:FIRST_CHARACTERS] == b[:FIRST_CHARACTERS]
                                             for a, b in pairs]),
            "all": share([a == b for a, b in pairs])}


def is_sound(*agreements):
    """Any other program's answers begin the same often enough."""
    return any(a and a["n"] > 0 and a["first"] >= SOUND_SHARE for a in agreements)
