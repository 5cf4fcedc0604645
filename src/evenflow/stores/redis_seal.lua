-- KEYS: group records members
-- ARGV: 1-3 what this client has seen, 4 partition, 5 epoch, 6 ordinal, 7 effects and 8 body of the default, 9 unplanned
-- A record is: epoch, ordinal, begun, fruitless, effects, changed_at, body; a line each.
local RECORDS = KEYS[2]
local partition, epoch = ARGV[4], ARGV[5]

local group, refused = read_group()
if refused then return refused end
if group.born then
    notice_restart(group, 0, KEYS[3])
    hear_witnesses(group, 1, 1)
    -- The record may be among those that were deleted. To begin where the default says could skip events.
    if notice_hole(group, 'records', RECORDS) then return {'hole'} end
end

local function written(ordinal, fruitless, effects, body)
    local record = table.concat({epoch, ordinal, ordinal, fruitless, effects, now(), body}, '\n')
    redis.call('HSET', RECORDS, partition, record)
    count(group, 'records', RECORDS)
    if group.born then
        -- A seal that is lost in a failover is proof of the loss, as a swap is.
        group.revision = redis.call('HINCRBY', GROUP, 'revision', 1)
    else
        redis.call('HSETNX', GROUP, 'layout', LAYOUT)
    end
    return record
end

-- rules.sealed
local function sealed()
    local record = redis.call('HGET', RECORDS, partition)
    if not record then return 'ok', written(ARGV[6], '0', ARGV[7], ARGV[8]) end
    local its_epoch, ordinal, begun, fruitless, effects, body =
        string.match(record, '^([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n[^\n]*\n(.*)$')
    local order = compare(its_epoch, epoch)
    if order > 0 then return 'over', record end
    if order == 0 then return 'ok', record end
    local is_of_older_history = halves(its_epoch) < halves(epoch)
    if is_of_older_history and compare(ordinal, ARGV[6]) < 0 and effects ~= '1' then
        return 'ok', written(ARGV[6], '0', ARGV[7], ARGV[8])
    end
    if compare(ordinal, begun) > 0 then
        fruitless = '0'
    elseif ARGV[9] == '1' then
        fruitless = whole_number(tonumber(fruitless) + 1)
    end
    return 'ok', written(ordinal, fruitless, effects, body)
end

local status, record = sealed()
if not group.born then return {status, '', '0', '0', record} end
local lineage, history, revision = cursor(group)
return {status, lineage, history, revision, record}
