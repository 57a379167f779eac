-- The holders as people see them. Times are relative to now.

local function shown_holders()
    local shown = {}
    for i, it in ipairs(holders) do
        shown[i] = { it[OWNER], it[TOKEN], it[WEIGHT], now - it[GRANTED], it[EXPIRES] - now, it[TTL] }
    end
    return shown
end
