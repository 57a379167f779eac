-- Read a cell, or write it if it has the version that the client expects.
--
-- KEYS  1 marker, which only routes the request, 2 cell (string): its version in 16 digits, then its value
-- ARGV  1 and 2 as everywhere (start.lua); 3 the expected version, or '' to read; 4 the value, '' to remove the cell;
--       5 after how many milliseconds without a write the cell may go, or 0
-- Returns  version, value, the time in microseconds, 1 if the cell was written

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local kept = redis.call('GET', KEYS[2]) or ''
local version, value = tonumber(string.sub(kept, 1, 16)) or 0, string.sub(kept, 17)
local written = 0
if ARGV[3] ~= '' and tonumber(ARGV[3]) == version then
    value, written = ARGV[4], 1
    version = value ~= '' and math.max(version + 1, now) or 0
    if value == '' then
        redis.call('SET', KEYS[2], '', 'PX', 1) -- as good as DEL, for which a user would need one more right
    elseif ARGV[5] == '0' then
        redis.call('SET', KEYS[2], string.format('%016.0f', version) .. value)
    else
        redis.call('SET', KEYS[2], string.format('%016.0f', version) .. value, 'PX', ARGV[5])
    end
end
return { string.format('%.0f', version), value, string.format('%.0f', now), written }
