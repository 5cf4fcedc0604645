-- KEYS: group trail records
-- ARGV: of each checkpoint: partition, epoch, ordinal, effects, body
local RECORDS = KEYS[3]
local PER = 5

local _, refused = read_group()
if refused then return refused end
local answers, kept = {}, {}
local at_time = now()
for at = 1, #ARGV, PER do
    local partition, epoch, ordinal = ARGV[at], ARGV[at + 1], ARGV[at + 2]
    local record = kept[partition] or redis.call('HGET', RECORDS, partition)
    local its_epoch, its_ordinal, begun, fruitless, effects
    if record then
        its_epoch, its_ordinal, begun, fruitless, effects =
            string.match(record, '^([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n')
    end
    -- rules.may_commit, rules.overtaken, rules.committed
    local may = record and its_epoch == epoch
    if may and compare(ordinal, its_ordinal) >= 0 then
        if ARGV[at + 3] == '1' then effects = '1' end
        kept[partition] = table.concat({epoch, ordinal, begun, fruitless, effects, at_time, ARGV[at + 4]}, '\n')
    end
    answers[#answers + 1] = may and 1 or 0
end
local values = {}
for partition, record in pairs(kept) do
    values[#values + 1] = partition
    values[#values + 1] = record
end
each_chunk(values, CHUNK, function(...) redis.call('HSET', RECORDS, ...) end)
return {'ok', answers}
