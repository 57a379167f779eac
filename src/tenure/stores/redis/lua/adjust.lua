-- Change a lease without a gap, and grant the waiters that it makes room for. Its weight never grows.
--
-- ARGV  3 request  4 token  5 weight (0: unchanged)  6 owner (empty: unchanged)  7 token to raise to (0: none) Returns
-- 0 done  2 the lease had expired  3 it had expired, and another holder followed
--@include fields
--@include start
--@include push
--@include state
--@include queue

local request, token, weighs, who = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local larger = tonumber(ARGV[7])

open()
look()
local holder = holder_of(request)
local held = holder and (holder[TOKEN] == token or holder[TOKEN] == larger)
if held and larger > 0 and holder[TOKEN] ~= larger then
    held = counter < larger
    if held then
        holder[TOKEN] = larger
        counter = larger
    end
end
if held then
    if weighs > 0 then holder[WEIGHT] = math.min(holder[WEIGHT], weighs) end
    if who ~= '' then holder[OWNER] = who end
end
serve_queue()
save()
return held and 0 or fate(token)
