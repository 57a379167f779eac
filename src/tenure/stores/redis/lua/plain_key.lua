-- Take, keep or give back plain keys, which redis-py's Lock uses, too, or look at them. Other values are left alone.
--
-- KEYS  1 marker (not read), then for each lease: the plain key  the tombstone of its request
-- ARGV  3 take, keep, give or look; then for each lease: the value of its key, and for how many milliseconds the key
--       lasts at least; for give: exactly, and 0 deletes it
-- Returns for each {code, value}: code  0 done  -1 the request was withdrawn  -2 there is no key; else for how many
--       milliseconds the key of another lasts (2^31: without an end), and its value
local call = redis.call
local doing, replies = ARGV[3], {}
for i = 1, (#KEYS - 1) / 2 do
    local key, mine, ms = KEYS[2 * i], ARGV[2 * i + 2], tonumber(ARGV[2 * i + 3])
    local value, code = call('GET', key), 0
    local left = value and call('PTTL', key)
    if not value and doing == 'take' then
        if call('GET', KEYS[2 * i + 1]) then code = -1 else call('SET', key, mine, 'PX', ms) end
    elseif value ~= mine then
        code = value and (left < 0 and 2147483648 or math.max(left, 1)) or -2
    elseif doing == 'give' and ms == 0 then
        call('DEL', key)
    elseif left < ms or doing == 'give' then
        call('PEXPIRE', key, ms)
    end
    replies[i] = { code, value or '' }
end
return replies
