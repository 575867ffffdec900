-- Schema 2: why a prompt's tokens were computed, the group a job ran in, a run's own counters.

-- The first prompt token that was not in the prefix cache and why not; 'none': all were there.
-- NULL: not known, as for jobs of schema 1 or those that never ran.
ALTER TABLE jobs ADD COLUMN miss_reason TEXT
    CHECK (miss_reason IN ('none', 'off', 'cold', 'differs', 'evicted', 'window', 'short',
                           'salt'));
ALTER TABLE jobs ADD COLUMN miss_at INTEGER CHECK (miss_at >= 0);

-- Of the job's group when the job was given out; NULL: it did not come out of a window.
ALTER TABLE jobs ADD COLUMN group_jobs INTEGER CHECK (group_jobs >= 1);
ALTER TABLE jobs ADD COLUMN shared_tokens INTEGER CHECK (shared_tokens >= 0);

-- What the engine counted in the last start of a run; NULL: it was killed.
ALTER TABLE runs ADD COLUMN counters_json TEXT;
