-- End the quarantine of this node, for somebody who knows that nobody is at work under a lease it has forgotten.
--
-- Returns  for how many microseconds it would have lasted
--@include start
--@include state

local left = math.max(0, quarantine(0) - now)
if left > 0 then
    marker[3] = now
    write_marker()
end
return told(left)
