-- Change a lease without a gap, and grant the waiters that it makes room for. Its weight never grows.
--
-- ARGV  3 request  4 token  5 weight (0: unchanged)  6 owner (empty: unchanged)  7 token to raise to (0: none)
--       8 the request of another client, under which the lease goes on (empty: of the same one)  9 channel of that client
--       10 ttl of the lease from now on (0: unchanged)
-- Returns  0 done  2 the lease had expired  3 it had expired, and another holder followed
@operation()

local request, token, weighs, who = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local larger, successor, length = tonumber(ARGV[7]), ARGV[8], tonumber(ARGV[10])

begin()
begin_queue()
if successor ~= '' and holder_of(successor) then -- it was handed over before
    serve_queue()
    save()
    return 0
end
local holder = holder_of(request)
local held = holder and (holder[TOKEN] == token or holder[TOKEN] == larger)
if held and successor ~= '' then
    quarantine(length + holder[DELAY])
    held = holder[TOKEN] == token and quarantined_for() == 0
end
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
if held and successor ~= '' then -- to the client that had it, this is a revocation
    note_revoked({ holder })
    bury(request)
    push(holder[CHANNEL], string.format('R %.0f %s', token, request))
    holder[REQUEST], holder[CHANNEL], holder[TOLD] = successor, ARGV[9], false
    if length > 0 then holder[TTL], holder[EXPIRES] = length, now + length end
end
serve_queue()
save()
return held and 0 or fate(token)
