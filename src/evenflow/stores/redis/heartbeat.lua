-- KEYS: group trail members marks heartbeats leases changes owned retired records
-- ARGV: 1 id, 2 incarnation, 3 nonce, 4 ttl_s, 5 facts, 6 leaving, 7 source, 8 a lineage for a new group,
--       9 forgotten_after_s, 10-13 since, 14-17 the newest cursor that this client has seen
local keys = {members = KEYS[3], marks = KEYS[4], heartbeats = KEYS[5], leases = KEYS[6], changes = KEYS[7],
    owned = KEYS[8], retired = KEYS[9]}
local RECORDS = KEYS[10]
local id, claimed, nonce, leaving, source = ARGV[1], ARGV[2], ARGV[3], ARGV[6] == '1', ARGV[7]
local has_since = ARGV[10] ~= ''

local group, refused = read_group()
if refused then return refused end

local DEPARTED_KEPT = 32

-- rules.can_send_changes
local function since_revision()
    local revision = tonumber(ARGV[12])
    local fits = ARGV[10] == group.lineage and tonumber(ARGV[11]) == group.history
        and group.born <= revision and revision <= group.revision
    return fits and revision or nil
end

-- rules.remember_departed: a late heartbeat changes nothing.
if group.born and string.find('\n' .. group.departed, '\n' .. nonce .. '\n', 1, true) then
    return {'ok', 0, '', now(), ledger(group, since_revision(), keys)}
end

local made = not group.born
if not group.lineage then
    group.lineage, group.run = ARGV[8], run_now()
    if not group.is_known then
        -- Only the group's key was deleted. Leases are useless without it. Checkpoints are kept, and new epochs start
        -- above theirs.
        redis.call('DEL', unpack(KEYS, 2, 9))
        for _, record in ipairs(redis.call('HVALS', RECORDS)) do
            group.history, group.was_there = math.max(group.history, halves(first_line(record)) + 1), true
        end
    end
    redis.call('HSET', GROUP, 'layout', LAYOUT, 'lineage', group.lineage, 'run', group.run,
        'history', whole_number(group.history))
    count(group, 'records', RECORDS)
else
    detect_restart(group, tonumber(ARGV[4]), keys.members)
end
if made then
    -- A deleted group leaves its counters behind; the new group starts above them.
    group.born, group.revision = group.revision + 1, group.revision + 1
    redis.call('HSET', GROUP, 'born', whole_number(group.born), 'revision', whole_number(group.revision))
end
local began = group.began
check_cursors(group, ARGV[13] == ARGV[17] and ARGV[12] == ARGV[16] and {10} or {10, 14})
detect_missing(group, 'leases', keys.leases)
detect_missing(group, 'records', RECORDS)

-- rules.first_history
if made then group.began = group.was_there and 0 or group.history end
if has_since then group.began = math.min(group.began, tonumber(ARGV[11])) end
if made or group.began ~= began then redis.call('HSET', GROUP, 'began', whole_number(group.began)) end

-- rules.admit_incarnation
local row = redis.call('HGET', keys.members, id)
local its_incarnation, its_nonce
if row then its_incarnation, its_nonce = string.match(row, '^([^\n]*)\n([^\n]*)\n') end
local incarnation
if row and its_nonce == nonce and (claimed == '0:0' or claimed == its_incarnation) then
    incarnation = its_incarnation
elseif claimed == '0:0' then
    incarnation = next_of(group.newest, group.history)
elseif row and compare(its_incarnation, claimed) >= 0 then
    return {'superseded', row}
else
    incarnation = claimed
end

local at = now()
advance(group, at)
if compare(incarnation, group.newest) > 0 then group.newest = incarnation end
local mark = whole_number(group.revision)

local function is_named(of, who) return redis.call('HEXISTS', keys.owned, of .. '#' .. who) == 1 end

local function remove(who)
    redis.call('HDEL', keys.members, who)
    redis.call('ZREM', keys.marks, who)
    redis.call('HDEL', keys.heartbeats, who)
    group.roster = group.revision
end

local stays = not leaving or is_named(incarnation, id)
if stays then
    local new_row = incarnation .. '\n' .. nonce .. '\n' .. ARGV[4] .. '\n' .. ARGV[5]
    if row ~= new_row then
        redis.call('HSET', keys.members, id, new_row)
        group.roster = group.revision
    end
    redis.call('ZADD', keys.marks, mark, id)
    redis.call('HSET', keys.heartbeats, id, at)
else
    if row and its_incarnation == incarnation then remove(id) end
    local departed = group.departed .. nonce .. '\n'
    local _, kept = string.gsub(departed, '\n', '')
    if kept > DEPARTED_KEPT then departed = string.match(departed, '\n(.*)$') end
    redis.call('HSET', GROUP, 'departed', departed)
end

-- Remove members that have been silent for long. Only members without a heartbeat since the cursor are checked.
if has_since then
    local limit = tonumber(at) - tonumber(ARGV[9])
    for _, who in ipairs(redis.call('ZRANGEBYSCORE', keys.marks, '-inf', ARGV[12])) do
        if tonumber(redis.call('HGET', keys.heartbeats, who) or '0') < limit then
            local its_row = redis.call('HGET', keys.members, who)
            if not its_row or not is_named(first_line(its_row), who) then remove(who) end
        end
    end
end

-- rules.prune_retired
if group.roster == group.revision then
    for _, owner in ipairs(redis.call('HKEYS', keys.retired)) do
        local its_row = redis.call('HGET', keys.members, id_of(owner))
        if not its_row or first_line(its_row) .. '#' .. id_of(owner) ~= owner then
            redis.call('HDEL', keys.retired, owner)
            redis.call('HINCRBY', GROUP, 'steered', 1)
        end
    end
end

local adopts = source ~= '' and group.source == ''
if adopts then
    group.source = source
    redis.call('HSET', GROUP, 'source', source)
end
redis.call('HSET', GROUP, 'revision', mark, 'roster', whole_number(group.roster), 'newest', group.newest)
if adopts then publish() end

return {'ok', made and 1 or 0, stays and incarnation or '', at, ledger(group, since_revision(), keys)}
