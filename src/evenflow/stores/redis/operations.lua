-- Reads and changes for operators and tools. ARGV[1] names the operation.
-- KEYS: group trail members marks heartbeats leases changes owned retired records moves actions
local keys = {members = KEYS[3], marks = KEYS[4], heartbeats = KEYS[5], leases = KEYS[6], changes = KEYS[7],
    owned = KEYS[8], retired = KEYS[9]}
local RECORDS, MOVES, ACTIONS = KEYS[10], KEYS[11], KEYS[12]

local group, refused = read_group()
if refused then return refused end
local operation = {}

function operation.exists()
    return {'ok', (group.born or redis.call('EXISTS', RECORDS) == 1) and 1 or 0}
end

function operation.peek()
    if not group.born then return {'none'} end
    return {'ok', 0, '', '', ledger(group, nil, keys)}
end

function operation.checkpoints() return {'ok', redis.call('HVALS', RECORDS)} end
-- The newest entries. LRANGE with 0 entries would return all of them.
local function newest(list, most) return most > 0 and redis.call('LRANGE', list, 0, most - 1) or {} end

function operation.moves() return {'ok', newest(MOVES, tonumber(ARGV[2]))} end
function operation.actions() return {'ok', newest(ACTIONS, tonumber(ARGV[2]))} end

-- The epoch of a lease: the first number after the partition and the owner in its JSON.
local function epoch_of(lease)
    local body = string.gsub(string.match(lease, '^[^\n]*\n[^\n]*\n[^\n]*\n(.*)$'), '\\.', '')
    local digits = string.match(body, '^%["[^"]*",null,(%d+)') or string.match(body, '^%["[^"]*",%["[^"]*",%d+%],(%d+)')
    local high, low = 0, 0
    for digit in string.gmatch(digits, '%d') do
        low = low * 10 + tonumber(digit)
        high, low = high * 10 + math.floor(low / 4294967296), low % 4294967296
    end
    return string.format('%.0f:%.0f', high, low)
end

-- rules.floor_after
local function raise_floor()
    local highest = group.floor
    for _, lease in ipairs(redis.call('HVALS', keys.leases)) do highest = later(highest, epoch_of(lease)) end
    for _, record in ipairs(redis.call('HVALS', RECORDS)) do highest = later(highest, first_line(record)) end
    redis.call('HSET', GROUP, 'layout', LAYOUT, 'floor', next_of(highest, group.history))
end

-- Keeps the counters, because clients may still have cursors, incarnations or epochs of the deleted group.
function operation.delete()
    raise_floor()
    redis.call('DEL', keys.members, keys.marks, keys.heartbeats, keys.leases, keys.changes, keys.owned, keys.retired,
        MOVES, RECORDS)
    redis.call('HDEL', GROUP, 'born', 'roster', 'source', 'state', 'quiet_until', 'restarted', 'leases', 'records',
        'began', 'departed')
    if group.born then publish() end
    return {'ok'}
end

local function keep(action, kept)
    redis.call('LPUSH', ACTIONS, action)
    redis.call('LTRIM', ACTIONS, 0, tonumber(kept) - 1)
end

function operation.record()
    redis.call('HSETNX', GROUP, 'layout', LAYOUT)
    keep(now() .. '\n' .. ARGV[2], ARGV[3])
    return {'ok'}
end

function operation.state()
    if not group.born then return {'none'} end
    return {'ok', now(), redis.call('HGET', GROUP, 'steered') or '0', group.source,
        redis.call('HGET', GROUP, 'state') or '{}', redis.call('HGETALL', keys.retired)}
end

-- ARGV: 2 the version that the decision is based on, 3 state, 4 action, 5 actions kept, then owner and request of each
--       member to retire
function operation.steer()
    if not group.born then return {'none'} end
    if (redis.call('HGET', GROUP, 'steered') or '0') ~= ARGV[2] then return {'again'} end
    detect_restart(group, 0, keys.members)
    redis.call('HINCRBY', GROUP, 'steered', 1)
    advance(group, now())
    redis.call('HSET', GROUP, 'revision', whole_number(group.revision), 'state', ARGV[3])
    redis.call('DEL', keys.retired)
    for at = 6, #ARGV, 2 do redis.call('HSET', keys.retired, ARGV[at], ARGV[at + 1]) end
    keep(ARGV[4], ARGV[5])
    publish()
    return {'ok'}
end

return operation[ARGV[1]]()
