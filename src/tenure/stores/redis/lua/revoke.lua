-- Revoke the lease with a token, or all leases, notify the holders, and grant the name to the next waiter. Issues a
-- token that nobody gets, to fence the old holders off.
--
-- ARGV  3 the token, or 0 for all holders
-- Returns  the revoked leases, as inspect returns holders
@operation()
@views()

local token = tonumber(ARGV[3])

begin()
begin_queue()
local victims, others = {}, {}
for _, holder in ipairs(holders) do
    local to = (token == 0 or holder[TOKEN] == token) and victims or others
    to[#to + 1] = holder
end
holders = victims
local shown = shown_holders()
holders = others
for _, holder in ipairs(victims) do
    block_since(now, holder[DELAY])
    push(holder[CHANNEL], string.format('R %.0f %s', holder[TOKEN], holder[REQUEST]))
end
if victims[1] then
    counter = new_token(0)
    note_revoked(victims)
end
serve_queue()
save()
return shown
