#include "base/sha256.h"

#include <stdbool.h>

/* OpenSSL has a type of the same name as one of our error codes. */
#define ERR_STATE openssl_err_state
#include <openssl/evp.h>
#undef ERR_STATE

enum { STREAM_CHUNK_BYTES = 65536, DIGEST_BYTES = 32 };

static void write_hex(const unsigned char digest[DIGEST_BYTES], char hex[SHA256_HEX_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < DIGEST_BYTES; i++) {
        hex[2 * i] = digits[digest[i] >> 4];
        hex[2 * i + 1] = digits[digest[i] & 15];
    }
    hex[SHA256_HEX_BYTES - 1] = '\0';
}

int sha256_hex(const void *bytes, size_t length, char hex[SHA256_HEX_BYTES], struct err *e)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    if (!EVP_Digest(length ? bytes : "", length, digest, NULL, EVP_sha256(), NULL))
        return ERR_SET(e, ERR_NOMEM, "the cryptography library has no memory for SHA-256");
    write_hex(digest, hex);
    return 0;
}

static int digest_stream(EVP_MD_CTX *context, FILE *stream, unsigned char *digest,
                         struct err *e)
{
    unsigned char chunk[STREAM_CHUNK_BYTES];
    bool ok = EVP_DigestInit_ex(context, EVP_sha256(), NULL) == 1;
    size_t n;
    while (ok && (n = fread(chunk, 1, sizeof chunk, stream)) > 0)
        ok = EVP_DigestUpdate(context, chunk, n) == 1;
    if (ferror(stream))
        return ERR_SET(e, ERR_IO, "reading failed while computing the SHA-256");
    if (!ok || EVP_DigestFinal_ex(context, digest, NULL) != 1)
        return ERR_SET(e, ERR_NOMEM, "the cryptography library has no memory for SHA-256");
    return 0;
}

int sha256_hex_stream(FILE *stream, char hex[SHA256_HEX_BYTES], struct err *e)
{
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    if (!context)
        return ERR_SET(e, ERR_NOMEM, "out of memory for the SHA-256");
    unsigned char digest[EVP_MAX_MD_SIZE];
    const int code = digest_stream(context, stream, digest, e);
    EVP_MD_CTX_free(context);
    if (code == 0)
        write_hex(digest, hex);
    return code;
}
