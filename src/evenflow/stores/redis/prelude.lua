-- Shared by all scripts of the Redis store. One script is one atomic step and implements stores/rules.py.
--
-- Lua's numbers are doubles, exact up to 2^53. Epochs, incarnations and ordinals are strings "high:low" of two 32-bit
-- halves, compared half by half. Revisions and histories are counts that stay far below. Everything else (notes, times,
-- reasons) is text that is passed through unparsed, because cjson would round numbers.

local LAYOUT = 1
local GROUP = KEYS[1]
local TRAIL_KEY = KEYS[2]  -- except in a commit
local CHANNEL = string.sub(GROUP, 1, -6) .. 'wake'
local CHUNK = 1000  -- the most values for one unpack

local function halves(wide)
    local high, low = string.match(wide, '^(%d+):(%d+)$')
    return tonumber(high), tonumber(low)
end

local function compare(one, other)
    local high, low = halves(one)
    local other_high, other_low = halves(other)
    if high ~= other_high then return high < other_high and -1 or 1 end
    if low ~= other_low then return low < other_low and -1 or 1 end
    return 0
end

-- model.next_epoch: the lowest number above `wide` that belongs to `history` or a later one.
local function next_of(wide, history)
    local high, low = halves(wide)
    if high < history then high, low = history, 0 end
    low = low + 1
    if low == 4294967296 then high, low = high + 1, 0 end
    return string.format('%.0f:%.0f', high, low)
end

-- model.restore_epoch
local function restore_epoch(history) return string.format('%.0f:0', history) end

local function later(one, other) return compare(one, other) < 0 and other or one end

local function whole_number(number) return string.format('%.0f', number) end

local function now()
    local time = redis.call('TIME')
    return time[1] .. '.' .. string.format('%06d', time[2])
end

-- The owner as "high:low#id", or ''.
local function owner_of(lease) return string.match(lease, '^%d+\n[^\n]*\n([^\n]*)\n') end
local function revision_of(lease) return string.match(lease, '^(%d+)\n') end
local function id_of(owner) return string.match(owner, '^%d+:%d+#(.*)$') end
-- The incarnation of a member's row, or the epoch of a record.
local function first_line(text) return string.match(text, '^([^\n]*)\n') end

local function publish(who)
    -- pcall: without the permission to publish, only wake-ups are lost.
    redis.pcall('PUBLISH', who == nil and CHANNEL or (CHANNEL .. ':' .. who), '1')
end

local function each_chunk(values, per, call)
    for first = 1, #values, per do
        call(unpack(values, first, math.min(first + per - 1, #values)))
    end
end

-- Identifies the run of the server: the id changes when a server starts and when a replica is promoted, even if it was
-- the master before. '' if INFO is not allowed.
local function run_now()
    local info = redis.pcall('INFO', 'replication')
    if type(info) ~= 'string' then return '' end
    return string.match(info, 'master_replid:(%x+)') or ''
end

local function read_group()
    local v = redis.call('HMGET', GROUP, 'layout', 'lineage', 'history', 'born', 'revision', 'roster', 'newest',
        'source', 'run', 'term', 'quiet_until', 'restarted', 'leases', 'records', 'began', 'floor',
        'departed')
    if v[1] and tonumber(v[1]) > LAYOUT then return nil, {'layout', v[1], tostring(LAYOUT)} end
    return {
        lineage = v[2], history = tonumber(v[3] or '0'), born = v[4] and tonumber(v[4]),
        revision = tonumber(v[5] or '0'), roster = tonumber(v[6] or '0'), newest = v[7] or '0:0',
        source = v[8] or '', run = v[9] or '', term = tonumber(v[10] or '0'),
        quiet_until = v[11] and tonumber(v[11]), restarted = v[12] and tonumber(v[12]),
        leases = tonumber(v[13] or '0'), records = tonumber(v[14] or '0'), began = tonumber(v[15] or '0'),
        floor = v[16] or '0:0', departed = v[17] or '', is_known = v[1] ~= false,
    }
end

-- The last revisions have names: eight digits of the server's time when each was made. A revision that was lost and
-- made again has another name than the one that a client has seen.
local TRAIL, NAME = 4096, 8

local function name_of(revision)
    local at = revision % TRAIL * NAME
    return redis.call('GETRANGE', TRAIL_KEY, at, at + NAME - 1)
end

-- The next revision, and its name; the caller writes the number.
local function advance(group, time)
    local seconds, microseconds = string.match(time, '(%d%d)%.(%d+)$')
    group.revision, group.name = group.revision + 1, seconds .. microseconds
    redis.call('SETRANGE', TRAIL_KEY, group.revision % TRAIL * NAME, group.name)
end

-- A cursor's stamp contains the term and the server run in which it was issued, and the name of its revision.
local function stamp(group)
    local name = group.name or name_of(group.revision)
    return whole_number(group.term) .. '.' .. string.sub(group.run, 1, 8) .. '.' .. string.match(name, '^%d*')
end

-- rules.history_after: the history after this cursor was seen. A revision that still has a name must have the name in
-- the cursor's stamp. For older revisions, the last revision of every earlier term is kept: a cursor beyond it proves a
-- loss, even if the revision has grown past it since.
local function history_after(group, lineage, history, revision, stamped)
    if lineage == '' then return group.history end
    if lineage ~= group.lineage or history > group.history then return math.max(group.history, history + 1) end
    if history < group.history then return group.history end
    local term, run, name = string.match(stamped, '^(%d+)%.(%x*)%.(%d*)$')
    if revision > group.revision then return history + 1 end
    if not term then return history end
    if name ~= '' and revision > group.revision - TRAIL then
        return name_of(revision) == name and history or history + 1
    end
    if tonumber(term) == group.term and run == string.sub(group.run, 1, 8) then return history end
    local ended = redis.call('HGET', GROUP, 'end:' .. term)
    local its_run, its_last = string.match(ended or '', '^(%x*)@(%d+)$')
    return its_run == run and revision <= tonumber(its_last) and history or history + 1
end

local TERMS_KEPT = 64

local function raise_history(group)
    group.history = group.history + 1
    redis.call('HSET', GROUP, 'history', whole_number(group.history))
end

-- Detects that the server was restarted or replaced since the group was last written, so the last writes may be lost.
-- No lease is granted (`is_quiet`) until every member has sent the newest cursor that it saw. A member that stays
-- silent for a time-to-live may own a lease that was lost, and may have processed events under its epoch: then the
-- history rises, so that no epoch is assigned twice. Call this before the revision grows.
local function detect_restart(group, longest_ttl_s, members)
    local run = run_now()
    if run == '' or run == group.run then return end
    if group.born then
        for _, row in ipairs(redis.call('HVALS', members)) do
            longest_ttl_s = math.max(longest_ttl_s, tonumber(string.match(row, '^[^\n]*\n[^\n]*\n([^\n]*)\n')))
        end
        group.restarted, group.quiet_until = group.revision, tonumber(now()) + longest_ttl_s
        redis.call('HSET', GROUP, 'restarted', whole_number(group.restarted),
            'quiet_until', string.format('%.6f', group.quiet_until))
    end
    redis.call('HSET', GROUP, 'end:' .. whole_number(group.term),
        string.sub(group.run, 1, 8) .. '@' .. whole_number(group.revision))
    redis.call('HDEL', GROUP, 'end:' .. whole_number(group.term - TERMS_KEPT))
    group.run, group.term = run, group.term + 1
    redis.call('HSET', GROUP, 'run', run, 'term', whole_number(group.term))
end

local function is_quiet(group, marks)
    if not group.quiet_until then return false end
    local has_silent = redis.call('ZCOUNT', marks, '-inf', group.restarted) > 0
    if has_silent and tonumber(now()) < group.quiet_until then return true end
    redis.call('HDEL', GROUP, 'quiet_until', 'restarted')
    group.quiet_until = nil
    if has_silent then raise_history(group) end
    return false
end

-- Raises the history if one of the client's cursors proves a loss. `places` are the indexes in ARGV where each cursor
-- begins: lineage, history, revision, stamp.
local function check_cursors(group, places)
    local history = group.history
    for _, at in ipairs(places) do
        history = math.max(history,
            history_after(group, ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), ARGV[at + 3]))
    end
    if history > group.history then
        group.history = history
        redis.call('HSET', GROUP, 'history', whole_number(history))
    end
end

-- The numbers of leases and records are stored separately, so that deleted or evicted keys are detected. `what` is the
-- name of the count, and `key` holds the counted entries.
local function detect_missing(group, what, key)
    local there = redis.call('HLEN', key)
    if there >= group[what] then return false end
    group[what] = there
    redis.call('HSET', GROUP, what, there)
    raise_history(group)
    return true
end

local function count(group, what, key)
    local there = redis.call('HLEN', key)
    if there ~= group[what] then redis.call('HSET', GROUP, what, there) end
end

-- Four values: lineage, history, revision, stamp.
local function cursor(group)
    return {group.lineage, whole_number(group.history), whole_number(group.revision), stamp(group)}
end

-- The rows of these members, flattened: id, row, mark and heartbeat time of each.
local function rows_of(marked, members, heartbeats)
    local found = {}
    for at = 1, #marked, 2 do
        local id = marked[at]
        local row = redis.call('HGET', members, id)
        if row then
            found[#found + 1] = id
            found[#found + 1] = row
            found[#found + 1] = marked[at + 1]
            found[#found + 1] = redis.call('HGET', heartbeats, id) or '0'
        end
    end
    return found
end

-- A record has one line each for epoch, ordinal, begun, fruitless, effects, changed_at, edition and body. Older records
-- have no edition.
local function fields_of(record)
    return string.match(record, '^([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n[^\n]*\n(%d*)\n?(.*)$')
end

-- The answer of a heartbeat and of a peek. `since` is nil for the whole ledger.
local function ledger(group, since, keys)
    local leases, marked = {}, nil
    local with_roster = since == nil or group.roster > since
    if since == nil then
        leases = redis.call('HVALS', keys.leases)
    else
        local changed = redis.call('ZRANGEBYSCORE', keys.changes, '(' .. whole_number(since), '+inf')
        each_chunk(changed, CHUNK, function(...)
            for _, lease in ipairs(redis.call('HMGET', keys.leases, ...)) do leases[#leases + 1] = lease end
        end)
    end
    if with_roster then
        marked = redis.call('ZRANGE', keys.marks, 0, -1, 'WITHSCORES')
    else
        marked = redis.call('ZRANGEBYSCORE', keys.marks, '-inf', whole_number(since), 'WITHSCORES')
    end
    return cursor(group), since == nil and 1 or 0, with_roster and 1 or 0, leases,
        rows_of(marked, keys.members, keys.heartbeats), group.source,
        redis.call('HGET', GROUP, 'state') or '{}', redis.call('HGETALL', keys.retired), group.began, group.floor
end
