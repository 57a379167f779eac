-- Add to the first number of the state in a cell, once for each number of a lane: `Addition` of contracts/cells.py.
--
-- KEYS  1 marker, which only routes the request, 2 cell, as in cell.lua
-- ARGV  1 and 2 as everywhere (start.lua); 3 what to add; 4 and 5 the least and the largest number that may result;
--       6 the reply, '' for the number that results; 7 the lane; 8 the number of the change in its lane
-- Returns  the reply; or nil if nothing was done, and the client has to read and write the cell itself: if there is no
--          cell, it has no such text, this may be a late copy of a request, the result is out of bounds, or the cell is
--          so large that replies should go. A request may be a late copy if its lane has made a later change, or if the
--          lane has no reply and the cell has forgotten some
-- Cell  [[number,...],{"lane":[number,reply,version before],...}], written as core/cells.py does, with the latest reply
--       last, and with the lane "" if replies were forgotten; no state has a lane as a key. Text is replaced by text,
--       because the numbers of cjson have only 14 digits.

local kept = redis.call('GET', KEYS[2])
if not kept or #kept > 32768 then return false end
local start, first, rest = string.match(kept, '^(%d+%[%[)(%-?%d+)()')
if not start then return false end

local lane = '"' .. ARGV[7] .. '":['
local from, to = string.find(kept, lane, rest, true)
if from then
    local number, reply, after = string.match(kept, '^(%d+),(%-?%d+),%d+%]()', to + 1)
    if not number then return false end
    if number == ARGV[8] then return reply end
    if tonumber(number) > tonumber(ARGV[8]) then return false end
    kept = string.sub(kept, 1, from - 1) .. string.sub(kept, after + 1, -3)
elseif string.find(kept, '"":[', rest, true) then
    return false
else
    kept = string.sub(kept, 1, -3)
end

local sum = tonumber(first) + ARGV[3]
if sum < tonumber(ARGV[4]) or sum > tonumber(ARGV[5]) then return false end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local before = tonumber(string.sub(start, 1, 16))
local version = math.max(before + 1, now)
local result = string.format('%.0f', sum)
local reply = ARGV[6] ~= '' and ARGV[6] or result
local last = string.byte(kept, -1)
local comma = (last == 123 or last == 44) and '' or ','
redis.call('SET', KEYS[2], string.format('%016.0f', version) .. '[[' .. result .. string.sub(kept, rest)
    .. comma .. lane .. ARGV[8] .. ',' .. reply .. ',' .. string.format('%.0f', before) .. ']}]')
return reply
