-- Take the name from whoever holds it, tell them, and pass it on. Burns a token, to fence them off.
--
-- Returns  the holders, as inspect shows them
--@include start
--@include state
--@include queue
--@include views

open()
look()
local shown, victims = shown_holders(), holders
holders = {}
for _, holder in ipairs(victims) do
    block_since(now, holder[DELAY])
    push(holder[INBOX], string.format('R %.0f %s', holder[TOKEN], holder[REQUEST]))
end
if victims[1] then counter = next_token(0) end
pass_on()
save()
return shown
