"""What is asked of Redis in one step, in its own language.

Several streams are asked for in one round trip, and answered for one moment. A stream that cannot be read, because it
is something else for instance, is told by a text in place of its answer: the others are none the worse for it.
"""

from __future__ import annotations

from typing import Final

FACTS = """
local function facts(key)
    if redis.call('TYPE', key).ok == 'none' then return {0, -1, '', '0-0'} end
    local told = redis.call('XINFO', 'STREAM', key)
    local by = {}
    for at = 1, #told, 2 do by[told[at]] = told[at + 1] end
    local first = by['first-entry']
    return {by['length'], by['entries-added'] or -1, first and first[1] or '', by['last-generated-id']}
end

local function each(look)
    local found = {}
    for at, key in ipairs(KEYS) do
        local well, told = pcall(look, key, at)
        if not well and type(told) == 'table' then told = told.err end
        found[at] = told
    end
    return found
end
"""

LOOK: Final = f"""
{FACTS}
return each(facts)
"""
"""Of each key: length, how many were ever added (-1: not counted), the first id, the last that was given."""

FETCH: Final = f"""
{FACTS}
local most, left = tonumber(ARGV[1]), tonumber(ARGV[2])

-- A few at a time: how large entries are is not known before they are looked at.
local function some(key, after, room)
    local got, from, step = {{}}, '(' .. after, 1
    while #got < most and room > 0 do
        local part = redis.call('XRANGE', key, from, '+', 'COUNT', step)
        for _, entry in ipairs(part) do
            got[#got + 1] = entry
            for _, text in ipairs(entry[2]) do room, left = room - #text, left - #text end
        end
        if #part < step then return got, 0 end
        from, step = '(' .. part[#part][1], math.min(2 * step, 16, most - #got)
    end
    return got, 1
end

return each(function(key, at)
    local entries, more = some(key, ARGV[2 * at + 1], math.min(left, tonumber(ARGV[2 * at + 2])))
    return {{facts(key), entries, more}}
end)
"""
"""ARGV: how many entries of each at most; how many bytes of all; then for each key, after which id, and how many bytes.

Of each key: as above; entries; 1 where there may be more. There is at least one entry where bytes are left for it.
"""

IDS: Final = """
local ids = {}
local command = ARGV[4] == 'back' and 'XREVRANGE' or 'XRANGE'
for at, entry in ipairs(redis.call(command, KEYS[1], ARGV[1], ARGV[2], 'COUNT', ARGV[3])) do ids[at] = entry[1] end
return ids
"""
"""Of one key: the ids from ARGV[1] to ARGV[2], ARGV[3] at most."""

NEXT: Final = f"""
{FACTS}
return each(function(key, at)
    local following = redis.call('XRANGE', key, '(' .. ARGV[at], '+', 'COUNT', 1)[1]
    return {{following and following[1] or ''}}
end)
"""
"""Of each key: the first id after the one in ARGV, or nothing."""

MADE: Final = """
for _, group in ipairs(redis.call('EXISTS', KEYS[1]) == 1 and redis.call('XINFO', 'GROUPS', KEYS[1]) or {}) do
    if string.sub(group[2], 1, #ARGV[1]) == ARGV[1] then return group[2] end
end
redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1] .. ARGV[2], '$', 'MKSTREAM')
return ARGV[1] .. ARGV[2]
"""
"""The name of the group of one key that begins with ARGV[1]; it is made when there is none."""
