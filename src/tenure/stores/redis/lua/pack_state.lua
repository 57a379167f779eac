-- Pack the state of a name into `packed`, in the usual form if it has that.
if capacity == 1 and blocked == 0 and not heavy and not others and not barging
    and (h_request == '' or h_token == counter and h_weight == 1 and h_delay == 0)
    and #released < 256 and #h_request < 256 and #h_channel < 256 then
    packed = st.pack(HEAD, USUAL, h_told and 1 or 0, queued, counter, used, expires, last_place, slowest,
        h_granted, h_expires, h_ttl, tomb, #released, released, #h_request, h_request, #h_channel, h_channel)
        .. h_owner
else
    packed = cmsgpack.pack(counter, capacity, blocked, block, released, used, last_place, expires, queued,
        slowest, heavy, h_request, h_channel, h_owner, h_token, h_weight, h_ttl, h_delay, h_granted, h_expires, h_told,
        others, tomb, barging or false)
end
