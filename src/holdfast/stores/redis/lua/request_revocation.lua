-- Ask those who hold the name to let go.
--
-- Returns  the holders that can hear it, as inspect shows them
--@include start
--@include state
--@include queue
--@include views

open()
look()
pass_on()
local all = holders
holders = {}
for _, holder in ipairs(all) do
    if holder[CHANNEL] ~= '' then
        holders[#holders + 1] = holder
        push(holder[CHANNEL], string.format('A %.0f %s', holder[TOKEN], holder[REQUEST]))
    end
end
local asked = shown_holders()
holders = all
save()
return asked
