-- KEYS: group trail records members
-- ARGV: 1-4 the newest cursor that this client has seen, 5 partition, 6 epoch, 7 ordinal, 8 effects and 9 body of the
--       default, 10 unplanned
local RECORDS, MEMBERS = KEYS[3], KEYS[4]
local partition, epoch, default = ARGV[5], ARGV[6], {ARGV[7], '0', ARGV[8], ARGV[9]}

local group, refused = read_group()
if refused then return refused end
if group.born then
    detect_restart(group, 0, MEMBERS)
    check_cursors(group, {1})
    -- The record may be one of the deleted ones. Starting from the default could skip events.
    if detect_missing(group, 'records', RECORDS) then return {'hole'} end
elseif not group.lineage and ARGV[1] ~= '' then
    group.history = tonumber(ARGV[2]) + 1  -- this client has seen the group, so the store was emptied
end

local function written(ordinal, fruitless, effects, body)
    local time = now()
    local record = table.concat({epoch, ordinal, ordinal, fruitless, effects, time, '0', body}, '\n')
    redis.call('HSET', RECORDS, partition, record)
    count(group, 'records', RECORDS)
    if group.born then
        -- Advance the revision, so that a seal that is lost in a failover is detected, like a swap.
        advance(group, time)
        redis.call('HSET', GROUP, 'revision', whole_number(group.revision))
    else
        redis.call('HSETNX', GROUP, 'layout', LAYOUT)
    end
    return record
end

-- rules.seal
local function sealed()
    local record = redis.call('HGET', RECORDS, partition)
    local lowest = record and group.floor or later(group.floor, restore_epoch(group.history))
    if compare(epoch, lowest) < 0 then return 'over', record or '' end
    if not record then return 'ok', written(unpack(default)) end
    local its_epoch, ordinal, begun, fruitless, effects, _, body = fields_of(record)
    local order = compare(its_epoch, epoch)
    if order > 0 then return 'over', record end
    if order == 0 then return 'ok', record end
    if compare(ordinal, begun) > 0 then
        fruitless = '0'
    elseif ARGV[10] == '1' then
        fruitless = whole_number(tonumber(fruitless) + 1)
    end
    return 'ok', written(ordinal, fruitless, effects, body)
end

local status, record = sealed()
return {status, group.born and cursor(group) or {}, record, whole_number(group.history), group.floor}
