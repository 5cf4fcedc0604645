-- KEYS: group trail members marks leases changes owned moves
-- ARGV: 1-4 the newest cursor that this client has seen, 5 moves kept, then of each change:
--       partition, revision, history, epoch, owner, still (an owner, or ''), its mark (or ''), body
local MEMBERS, MARKS, LEASES, CHANGES, OWNED, MOVES = KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local FIRST, PER = 6, 8

local group, refused = read_group()
if refused then return refused end
local answers = {}
if not group.born then
    for _ = FIRST, #ARGV, PER do
        answers[#answers + 1] = 'owner'
        answers[#answers + 1] = ''
    end
    return {'ok', {}, answers}
end
detect_restart(group, 0, MEMBERS)
check_cursors(group, {1})
detect_missing(group, 'leases', LEASES)
local quiet = is_quiet(group, MARKS)

local marks = {}
-- The heartbeat counter of an incarnation; false if it has no row, or a newer incarnation has the row.
local function mark_of(owner)
    if marks[owner] == nil then
        local id = id_of(owner)
        local row = redis.call('HGET', MEMBERS, id)
        local is_its = row and first_line(row) .. '#' .. id == owner
        marks[owner] = is_its and redis.call('ZSCORE', MARKS, id) or false
    end
    return marks[owner]
end

local known, known_at = {}, FIRST
-- Leases are read in chunks; leases changed in this step are cached.
local function lease_of(partition, at)
    if at >= known_at then
        local names = {}
        while known_at <= #ARGV and #names < CHUNK do
            if known[ARGV[known_at]] == nil then names[#names + 1] = ARGV[known_at] end
            known_at = known_at + PER
        end
        if #names > 0 then
            for number, lease in ipairs(redis.call('HMGET', LEASES, unpack(names))) do known[names[number]] = lease end
        end
    end
    return known[partition]
end

-- rules.why_refused
local function refusal(lease, at)
    if tonumber(ARGV[at + 2]) ~= group.history then return 'history' end
    if ARGV[at + 1] ~= (lease and revision_of(lease) or '0') then return 'revision' end
    if compare(ARGV[at + 3], group.floor) <= 0 then return 'epoch' end
    local owner, still, mark = ARGV[at + 4], ARGV[at + 5], ARGV[at + 6]
    if still ~= '' and (mark_of(still) or '') ~= mark then return 'mark' end
    if owner ~= '' and not mark_of(owner) then return 'owner' end
    if owner ~= '' and quiet then return 'mark' end
    return ''
end

local revision, at_time = whole_number(group.revision + 1), now()
local written, order, owned, moves, heirs = {}, {}, {}, {}, {}
for at = FIRST, #ARGV, PER do
    local partition = ARGV[at]
    local before = lease_of(partition, at)
    local why = refusal(before, at)
    if why == '' then
        local owner, body = ARGV[at + 4], ARGV[at + 7]
        local old = before and owner_of(before) or ''
        local after = revision .. '\n' .. at_time .. '\n' .. owner .. '\n' .. body
        known[partition] = after
        if not written[partition] then order[#order + 1] = partition end
        written[partition] = true
        if old ~= '' then owned[old] = (owned[old] or 0) - 1 end
        if owner ~= '' then owned[owner] = (owned[owner] or 0) + 1 end
        if old ~= '' or owner ~= '' then moves[#moves + 1] = at_time .. '\n' .. old .. '\n' .. body end
        if old ~= '' and owner ~= '' and ARGV[at + 5] == '' and id_of(old) ~= id_of(owner) then
            heirs[id_of(owner)] = true
        end
        before = after
    end
    answers[#answers + 1] = why
    answers[#answers + 1] = before or ''
end

if #order > 0 then
    advance(group, at_time)
    redis.call('HSET', GROUP, 'revision', revision)
    local leases, scores = {}, {}
    for _, partition in ipairs(order) do
        leases[#leases + 1] = partition
        leases[#leases + 1] = known[partition]
        scores[#scores + 1] = revision
        scores[#scores + 1] = partition
    end
    each_chunk(leases, CHUNK, function(...) redis.call('HSET', LEASES, ...) end)
    each_chunk(scores, CHUNK, function(...) redis.call('ZADD', CHANGES, ...) end)
    count(group, 'leases', LEASES)
    for owner, difference in pairs(owned) do
        if difference ~= 0 and redis.call('HINCRBY', OWNED, owner, difference) <= 0 then
            redis.call('HDEL', OWNED, owner)
        end
    end
    each_chunk(moves, CHUNK, function(...) redis.call('LPUSH', MOVES, ...) end)
    redis.call('LTRIM', MOVES, 0, tonumber(ARGV[5]) - 1)
    for heir in pairs(heirs) do publish(heir) end
end
return {'ok', cursor(group), answers}
