-- What all scripts of the Redis store share. One script is one atomic step; what it decides is stores/rules.py.
--
-- Lua's numbers are doubles, exact up to 2^53. Epochs, incarnations and ordinals are "high:low", two texts of 32 bits
-- each, and are compared half by half. Revisions and histories are counts that stay far below. Everything else (notes,
-- times, reasons) is text that passes through untouched: cjson would round it.

local LAYOUT = 1
local GROUP = KEYS[1]
local TRAIL_KEY = KEYS[2]  -- but in a commit
local CHANNEL = string.sub(GROUP, 1, -6) .. 'wake'
local CHUNK = 1000  -- the most values that unpack is trusted with

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

-- "high:low#id" of the owner, or ''.
local function owner_of(lease) return string.match(lease, '^%d+\n[^\n]*\n([^\n]*)\n') end
local function revision_of(lease) return string.match(lease, '^(%d+)\n') end
local function id_of(owner) return string.match(owner, '^%d+:%d+#(.*)$') end
-- Of a member's row: its incarnation. Of a record: its epoch.
local function first_line(text) return string.match(text, '^([^\n]*)\n') end

local function publish(who)
    -- Without the right to publish, wake-ups are missed, and nothing else.
    redis.pcall('PUBLISH', who == nil and CHANNEL or (CHANNEL .. ':' .. who), '1')
end

local function each_chunk(values, per, call)
    for first = 1, #values, per do
        call(unpack(values, first, math.min(first + per - 1, #values)))
    end
end

-- Which run of which server this is: the id changes when a server starts and when a replica is promoted, also one that
-- was the master before. '' where INFO is not allowed.
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

-- The last revisions have names: the server's time at which each was made, eight digits of it. A revision that was lost
-- and made anew has another name than the one that somebody saw.
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

-- A cursor is stamped with the term in which it was given, the run of a server that this was, and its revision's name.
local function stamp(group)
    local name = group.name or name_of(group.revision)
    return whole_number(group.term) .. '.' .. string.sub(group.run, 1, 8) .. '.' .. string.match(name, '^%d*')
end

-- rules.history_after: what the history is, once a cursor was seen. A revision that has a name yet must have the very
-- one that was seen. For those of long ago the last revision of every earlier term is kept: a cursor from beyond it
-- proves a loss even when the revision has grown past it since.
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

-- Another process of a server answers now than when the group was last written: it was restarted, or another one has
-- taken its place, and the last writes may be lost. Until every member has told what it saw, nobody gets a lease:
-- `is_quiet`. One that stays silent for a time-to-live may have been given a lease that was lost, and handled events
-- under its epoch: the history rises, so that no epoch is given twice. To be called before the revision grows.
local function notice_restart(group, longest_ttl_s, members)
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

-- The history rises when one of these cursors proves a loss. `places` tells where in ARGV each begins: lineage, history,
-- revision, stamp.
local function hear_witnesses(group, places)
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

-- How many leases and records there are is kept beside them: who deletes or evicts one of those keys is found out.
-- `what` is the name of the count, and `key` holds what was counted.
local function notice_hole(group, what, key)
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

-- The rows of these members: id, row, mark and heartbeat of each, one after the other.
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

-- A record: epoch, ordinal, begun, fruitless, effects, changed_at, edition, body; a line each. Those of before have no
-- edition.
local function fields_of(record)
    return string.match(record, '^([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n[^\n]*\n(%d*)\n?(.*)$')
end

-- What a heartbeat answers, and a peek. `since` is nil for everything.
local function ledger(group, since, keys)
    local leases, marked = {}, nil
    local told_roster = since == nil or group.roster > since
    if since == nil then
        leases = redis.call('HVALS', keys.leases)
    else
        local changed = redis.call('ZRANGEBYSCORE', keys.changes, '(' .. whole_number(since), '+inf')
        each_chunk(changed, CHUNK, function(...)
            for _, lease in ipairs(redis.call('HMGET', keys.leases, ...)) do leases[#leases + 1] = lease end
        end)
    end
    if told_roster then
        marked = redis.call('ZRANGE', keys.marks, 0, -1, 'WITHSCORES')
    else
        marked = redis.call('ZRANGEBYSCORE', keys.marks, '-inf', whole_number(since), 'WITHSCORES')
    end
    return cursor(group), since == nil and 1 or 0, told_roster and 1 or 0, leases,
        rows_of(marked, keys.members, keys.heartbeats), group.source,
        redis.call('HGET', GROUP, 'state') or '{}', redis.call('HGETALL', keys.retired), group.began, group.floor
end
