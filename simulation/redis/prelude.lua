-- What a script finds around it in Redis, as far as ours need it: redis.call, cmsgpack, and no way to make a global.
--
-- Takes  a function that carries out a command: name, arguments... -> what a command answers, arrays unpacked
-- Returns  load(text) -> script,  run(script, number of keys, keys..., arguments...) -> the reply, see `emit`

local command = ...
local byte, char, floor, ceil = string.byte, string.char, math.floor, math.ceil
local concat, sub, huge, sethook = table.concat, string.sub, math.huge, debug.sethook

-- The commands that answer an array.
local ARRAYS = { MGET = true, TIME = true, ZRANGE = true, ZPOPMIN = true, PUBSUB = true }

local function array(...)
    local t = { ... }
    for i = 1, select('#', ...) do
        if t[i] == nil then t[i] = false end
    end
    return t
end

local function call(name, ...)
    if ARRAYS[name] then return array(command(name, ...)) end
    local answer = command(name, ...)
    if answer == nil then return false end
    if answer == true then return { ok = 'OK' } end
    return answer
end

-- What is packed and read is mostly the same again and again, so both remember it, and forget it all now and then.

local MOST = 500

local function memory(make)
    local known, count = {}, 0
    local function remember(key, value)
        if count == MOST then
            for each in pairs(known) do known[each] = nil end
            count = 0
        end
        count = count + 1
        known[key] = value
        return value
    end
    return setmetatable(known, { __index = function(_, key) return remember(key, make(key)) end }), remember
end

-- MessagePack, as the library cmsgpack in Redis writes and reads it.

local LONG = 4294967296
local pack_value

local function word(n)
    return char(floor(n / 16777216), floor(n / 65536) % 256, floor(n / 256) % 256, n % 256)
end

local function half(n)
    return char(floor(n / 256), n % 256)
end

local function pack_integer(n)
    if n >= 0 then
        if n < 128 then return char(n) end
        if n < 256 then return char(0xcc, n) end
        if n < 65536 then return '\205' .. half(n) end
        if n < LONG then return '\206' .. word(n) end
        return '\207' .. word(floor(n / LONG)) .. word(n % LONG)
    end
    if n >= -32 then return char(256 + n) end
    if n >= -128 then return char(0xd0, 256 + n) end
    if n >= -32768 then return '\209' .. half(65536 + n) end
    if n >= -2147483648 then return '\210' .. word(LONG + n) end
    return '\211' .. word(floor(n / LONG) + LONG) .. word(n % LONG)
end

local function pack_string(s)
    local size = #s
    if size < 32 then return char(0xa0 + size) .. s end
    if size < 256 then return char(0xd9, size) .. s end
    if size < 65536 then return '\218' .. half(size) .. s end
    return '\219' .. word(size) .. s
end

local function pack_array(t)
    local size, parts = #t, {}
    for key in pairs(t) do
        if type(key) ~= 'number' or key < 1 or key > size or key ~= floor(key) then
            error('the simulated cmsgpack packs no table that is not an array')
        end
    end
    for i = 1, size do parts[i + 1] = pack_value(t[i]) end
    parts[1] = size < 16 and char(0x90 + size) or '\220' .. half(size)
    return concat(parts)
end

local packed = memory(function(value)
    local kind = type(value)
    if kind == 'string' then return pack_string(value) end
    if kind == 'number' then
        if value ~= floor(value) or value >= 18446744073709551616 or value <= -huge then
            error('the simulated cmsgpack packs no number that is not an integer')
        end
        return pack_integer(value)
    end
    if kind == 'boolean' then return value and '\195' or '\194' end
    error('the simulated cmsgpack packs no ' .. kind)
end)

function pack_value(value)
    return type(value) == 'table' and pack_array(value) or packed[value]
end

local function read_integer(s, at, size)
    if size == 4 then
        local a, b, c, d = byte(s, at, at + 3)
        return ((a * 256 + b) * 256 + c) * 256 + d
    end
    local a, b = byte(s, at, at + size - 1)
    return size == 2 and a * 256 + b or a
end

local function read_double(s, at)
    local a, b, c, d, e, f, g, h = byte(s, at, at + 7)
    return ((a * 256 + b) * 256 + c) * 1099511627776 + (((d * 256 + e) * 256 + f) * 256 + g) * 256 + h
end

-- Size of what follows a tag, by the tag.
local UNSIGNED = { [0xcc] = 1, [0xcd] = 2, [0xce] = 4 }
local SIGNED = { [0xd0] = 1, [0xd1] = 2, [0xd2] = 4, [0xd3] = 8 }
local STRING = { [0xd9] = 1, [0xda] = 2, [0xdb] = 4 }

local function read_signed(s, at, size)
    if size == 8 then
        local high = read_integer(s, at, 4)
        return (byte(s, at) >= 128 and high - LONG or high) * LONG + read_integer(s, at + 4, 4)
    end
    local n = read_integer(s, at, size)
    return n >= 256 ^ size / 2 and n - 256 ^ size or n
end

-- Read up to `most` values into `values`; return where the next one begins, and how many they are. One loop reads all
-- that is not an array: a call for each value took longer.
local function read(s, at, most, values)
    local count, last = 0, #s
    while at <= last and count < most do
        local tag = byte(s, at)
        local value
        at = at + 1
        if tag < 0x80 then
            value = tag
        elseif tag == 0xcf then
            value, at = read_double(s, at), at + 8
        elseif tag >= 0xa0 and tag < 0xc0 then
            value, at = sub(s, at, at + tag - 0xa1), at + tag - 0xa0
        elseif UNSIGNED[tag] then
            value, at = read_integer(s, at, UNSIGNED[tag]), at + UNSIGNED[tag]
        elseif tag == 0xc2 or tag == 0xc3 then
            value = tag == 0xc3
        elseif STRING[tag] then
            local start = at + STRING[tag]
            at = start + read_integer(s, at, STRING[tag])
            value = sub(s, start, at - 1)
        elseif SIGNED[tag] then
            value, at = read_signed(s, at, SIGNED[tag]), at + SIGNED[tag]
        elseif tag >= 0xe0 then
            value = tag - 256
        elseif tag >= 0x90 and tag < 0xa0 then
            value = {}
            at = read(s, at, tag - 0x90, value)
        elseif tag == 0xdc then
            value = {}
            at = read(s, at + 2, read_integer(s, at, 2), value)
        else
            error(string.format('the simulated cmsgpack knows no tag %02x', tag))
        end
        count = count + 1
        values[count] = value
    end
    return at, count
end

local function copy(values, count)
    local twin = {}
    for i = 1, count do
        local value = values[i]
        twin[i] = type(value) == 'table' and copy(value, #value) or value
    end
    return twin
end

local unpacked, remember_unpacked = memory(function(s)
    local values = {}
    local _, count = read(s, 1, #s, values)
    local flat = true
    for i = 1, count do flat = flat and type(values[i]) ~= 'table' end
    return { count = count, flat = flat, values = values }
end)

local function unpack_all(s)
    local known = unpacked[s]
    local values, count = known.values, known.count
    return unpack(known.flat and values or copy(values, count), 1, count)
end

local function pack_all(...)
    local count, flat, values, parts = select('#', ...), true, { ... }, {}
    for i = 1, count do
        local value = values[i]
        if type(value) == 'table' then
            flat = false
            parts[i] = pack_array(value)
        else
            parts[i] = packed[value]
        end
    end
    local s = concat(parts)
    if flat and not rawget(unpacked, s) then remember_unpacked(s, { count = count, flat = true, values = values }) end
    return s
end

-- The library struct in Redis, as far as our scripts need it: big-endian B, I, d and c0.

local function double_bytes(value)
    if value == 0 then return '\0\0\0\0\0\0\0\0' end
    local sign = value < 0 and 128 or 0
    local fraction, exponent = math.frexp(value < 0 and -value or value)
    local mantissa = fraction * 9007199254740992 - 4503599627370496 -- 53 bits, of which the first is not stored
    exponent = exponent + 1022
    local high = floor(mantissa / LONG)
    return char(sign + floor(exponent / 16), exponent % 16 * 16 + floor(high / 65536), floor(high / 256) % 256, high % 256)
        .. word(mantissa % LONG)
end

local function double_at(s, at)
    local a, b, c, d, e, f, g, h = byte(s, at, at + 7)
    local exponent = a % 128 * 16 + floor(b / 16)
    local mantissa = ((b % 16 * 256 + c) * 256 + d) * LONG + ((e * 256 + f) * 256 + g) * 256 + h
    if exponent == 0 and mantissa == 0 then return 0 end
    return math.ldexp(mantissa + 4503599627370496, exponent - 1075) * (a >= 128 and -1 or 1)
end

local letters = memory(function(format)
    local list = {}
    for letter in string.gmatch(format, '%a') do list[#list + 1] = letter end
    if sub(format, 1, 1) ~= '>' then error('the simulated struct is big-endian') end
    return list
end)

local function struct_pack(format, ...)
    local parts, at = {}, 0
    for i, letter in ipairs(letters[format]) do
        at = at + 1
        local value = select(at, ...)
        if letter == 'B' then
            if value < 0 or value > 255 then error('a byte is between 0 and 255') end
            parts[i] = char(value)
        elseif letter == 'I' then
            parts[i] = word(value)
        elseif letter == 'd' then
            parts[i] = double_bytes(value)
        elseif letter == 'c' then
            parts[i] = value
        else
            error('the simulated struct knows no ' .. letter)
        end
    end
    return concat(parts)
end

local function struct_unpack(format, s, at)
    local values, count = {}, 0
    at = at or 1
    for _, letter in ipairs(letters[format]) do
        count = count + 1
        if letter == 'B' then
            values[count], at = byte(s, at), at + 1
        elseif letter == 'I' then
            values[count], at = read_integer(s, at, 4), at + 4
        elseif letter == 'd' then
            values[count], at = double_at(s, at), at + 8
        elseif letter == 'c' then -- so long as the number before, which is no value then
            count = count - 1
            local size = values[count]
            values[count], at = sub(s, at, at + size - 1), at + size
        else
            error('the simulated struct knows no ' .. letter)
        end
        if at > #s + 1 then error('data string too short') end
    end
    values[count + 1] = at
    return unpack(values, 1, count + 1)
end

-- The reply of a script, as pairs of a kind and a value: 0 nil, 1 number or text, 2 an array of so many that follow.

local function emit(out, value)
    local kind, at = type(value), #out
    if kind == 'number' then
        out[at + 1], out[at + 2] = 1, value >= 0 and floor(value) or ceil(value)
    elseif kind == 'string' then
        out[at + 1], out[at + 2] = 1, value
    elseif kind == 'table' then
        if value.err then error(value.err, 0) end
        if value.ok then
            out[at + 1], out[at + 2] = 1, value.ok
            return
        end
        local size = 0
        while value[size + 1] ~= nil do size = size + 1 end
        out[at + 1], out[at + 2] = 2, size
        for i = 1, size do emit(out, value[i]) end
    else
        out[at + 1], out[at + 2] = kind == 'boolean' and value and 1 or 0, 1
    end
end

-- What a script can see. As in Redis, it can make no global, and read none that is not there.
local world = {
    redis = { call = call },
    cmsgpack = { pack = pack_all, unpack = unpack_all },
    struct = { pack = struct_pack, unpack = struct_unpack },
}
for _, name in ipairs({ 'assert', 'error', 'ipairs', 'math', 'next', 'pairs', 'pcall', 'select', 'string', 'table',
    'tonumber', 'tostring', 'type', 'unpack' }) do
    world[name] = _G[name]
end
setmetatable(world, {
    __newindex = function(_, name) error('Script attempted to create global variable ' .. tostring(name), 2) end,
    __index = function(_, name) error('Script attempted to access nonexistent global variable ' .. tostring(name), 2) end,
})

local function load(text)
    return setfenv(assert(loadstring(text, '@user_script')), world)
end

local function too_long()
    error('the script does not end')
end

local function run(script, keys, ...)
    sethook(too_long, '', 10000000)
    local all, first, rest = { ... }, {}, {}
    for i = 1, keys do first[i] = all[i] end
    for i = keys + 1, #all do rest[i - keys] = all[i] end
    rawset(world, 'KEYS', first)
    rawset(world, 'ARGV', rest)
    local out = {}
    emit(out, script())
    return unpack(out)
end

return load, run
