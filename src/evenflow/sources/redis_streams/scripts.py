"""Lua scripts, which Redis executes atomically.

One script queries several streams in one round trip, at one moment. If a stream fails, for instance because the key
holds another type, its result is the error text, and the other streams are not affected.
"""

from __future__ import annotations

from typing import Final

STATE_FUNCTION = """
local function state(key)
    if redis.call('TYPE', key).ok == 'none' then return {0, -1, '', '0-0'} end
    local info = redis.call('XINFO', 'STREAM', key)
    local by = {}
    for at = 1, #info, 2 do by[info[at]] = info[at + 1] end
    local first = by['first-entry']
    return {by['length'], by['entries-added'] or -1, first and first[1] or '', by['last-generated-id']}
end

local function each(query)
    local found = {}
    for at, key in ipairs(KEYS) do
        local succeeded, result = pcall(query, key, at)
        if not succeeded and type(result) == 'table' then result = result.err end
        found[at] = result
    end
    return found
end
"""

STATE: Final = f"""
{STATE_FUNCTION}
return each(state)
"""
"""For each key: length, entries ever added (-1 if not counted), the first id, the last assigned id."""

FETCH: Final = f"""
{STATE_FUNCTION}
local most, left = tonumber(ARGV[1]), tonumber(ARGV[2])

-- A few at a time, because the size of entries is unknown before they are read.
local function some(key, after, free)
    local got, from, step = {{}}, '(' .. after, 1
    while #got < most and free > 0 do
        local part = redis.call('XRANGE', key, from, '+', 'COUNT', step)
        for _, entry in ipairs(part) do
            got[#got + 1] = entry
            for _, text in ipairs(entry[2]) do free, left = free - #text, left - #text end
        end
        if #part < step then return got, 0 end
        from, step = '(' .. part[#part][1], math.min(2 * step, 16, most - #got)
    end
    return got, 1
end

return each(function(key, at)
    local entries, more = some(key, ARGV[2 * at + 1], math.min(left, tonumber(ARGV[2 * at + 2])))
    return {{state(key), entries, more}}
end)
"""
"""ARGV: the most entries for each key, the most bytes for all keys, then for each key the id to continue after and its
most bytes.

For each key: its state, entries, and 1 if there may be more. There is at least one entry if bytes are left.
"""

IDS: Final = """
local ids = {}
local command = ARGV[4] == 'back' and 'XREVRANGE' or 'XRANGE'
for at, entry in ipairs(redis.call(command, KEYS[1], ARGV[1], ARGV[2], 'COUNT', ARGV[3])) do ids[at] = entry[1] end
return ids
"""
"""For one key: the ids from ARGV[1] to ARGV[2], at most ARGV[3]."""

NEXT: Final = f"""
{STATE_FUNCTION}
return each(function(key, at)
    local following = redis.call('XRANGE', key, '(' .. ARGV[at], '+', 'COUNT', 1)[1]
    return {{following and following[1] or ''}}
end)
"""
"""For each key: the first id after the one in ARGV, or an empty text."""

MADE: Final = """
for _, group in ipairs(redis.call('EXISTS', KEYS[1]) == 1 and redis.call('XINFO', 'GROUPS', KEYS[1]) or {}) do
    if string.sub(group[2], 1, #ARGV[1]) == ARGV[1] then return group[2] end
end
redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1] .. ARGV[2], '$', 'MKSTREAM')
return ARGV[1] .. ARGV[2]
"""
"""The name of the key's consumer group that begins with ARGV[1]; the group is created if there is none."""
