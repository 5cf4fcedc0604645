-- KEYS: group records; a commit makes no revision
-- ARGV: of each checkpoint: partition, epoch, ordinal, edition with begun and fruitless, effects, body
local RECORDS = KEYS[2]
local PER = 6

local group, refused = read_group()
if refused then return refused end
local limit = restore_epoch(group.history)

-- Compares a record with a commit by epoch, ordinal and edition: negative if the record is older.
local function age(its_epoch, its_ordinal, its_edition, epoch, ordinal, edition)
    local order = compare(its_epoch, epoch)
    if order == 0 then order = compare(its_ordinal, ordinal) end
    return order == 0 and tonumber(its_edition ~= '' and its_edition or '0') - tonumber(edition) or order
end

local answers, kept, makes = {}, {}, false
local at_time = now()
for at = 1, #ARGV, PER do
    local partition, epoch, ordinal, effects = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 4]
    local edition, begun, fruitless = string.match(ARGV[at + 3], '^(%d+) (%S+) (%d+)$')
    local record = kept[partition] or redis.call('HGET', RECORDS, partition)
    local is_its_epoch, order, restores = false, -1, group.history > 0 and compare(epoch, limit) <= 0
    if record then
        local its_epoch, its_ordinal, its_effects, its_edition
        its_epoch, its_ordinal, begun, fruitless, its_effects, its_edition = fields_of(record)
        is_its_epoch, order = its_epoch == epoch, age(its_epoch, its_ordinal, its_edition, epoch, ordinal, edition)
        restores = restores and order < 0 and its_effects ~= '1'
        if its_effects == '1' then effects = '1' end
    end
    -- rules.may_commit, rules.is_late_commit, rules.commit
    local may = compare(epoch, group.floor) >= 0 and (is_its_epoch or restores)
    if may and order <= 0 then
        local fields = {epoch, ordinal, begun, fruitless, effects, at_time, edition, ARGV[at + 5]}
        kept[partition], makes = table.concat(fields, '\n'), makes or not record
    end
    answers[#answers + 1] = may and 1 or 0
end
local values = {}
for partition, record in pairs(kept) do
    values[#values + 1] = partition
    values[#values + 1] = record
end
each_chunk(values, CHUNK, function(...) redis.call('HSET', RECORDS, ...) end)
if makes then count(group, 'records', RECORDS) end
return {'ok', answers}
