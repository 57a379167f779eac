-- Read the state of a name from `packed`: usual, any other, or none; refuse one of a later form. `tomb` is the instant
-- until which the name may have tombstones.
if packed and string.byte(packed) == USUAL then
    local _, holding, at
    _, holding, queued, counter, used, expires, last_place, slowest, h_granted, h_expires, h_ttl, tomb,
        released, h_request, h_channel, at = st.unpack(HEAD, packed)
    h_owner = string.sub(packed, at)
    h_token, h_told = counter, holding == 1
    capacity, blocked, block, heavy, h_weight, h_delay, others, barging = 1, 0, 0, false, 1, 0, false, false
elseif packed then
    -- A later form begins with its mark (contracts/forms.py). No other state does: its fifth value is a text, not a blank.
    local later = string.match(packed, '^form (%d+ %S+) ')
    if later then error({ err = 'FORM ' .. later }) end
    counter, capacity, blocked, block, released, used, last_place, expires, queued, slowest, heavy,
        h_request, h_channel, h_owner, h_token, h_weight, h_ttl, h_delay, h_granted, h_expires, h_told,
        others, tomb, barging = cmsgpack.unpack(packed)
else
    counter, capacity, blocked, block, released, used, last_place, expires, queued, slowest, heavy,
        h_request, h_channel, h_owner, h_token, h_weight, h_ttl, h_delay, h_granted, h_expires, h_told, others, tomb,
        barging =
        0, 1, 0, 0, '', 0, 0, 0, 0, 0, false, '', '', '', 0, 0, 0, 0, 0, 0, false, false, now + TOMBSTONE, false
end
