-- One turn of one node on the shared limits of one key, as one atomic step by this server's own clock.
--
-- KEYS[1] is a hash. `b:NAME` is a bucket: "LEVEL AT CAPACITY PERIOD". `h:INCARNATION` is what one process holds:
-- "SEQUENCE", and then "HELD UNTIL LIFE" for each bucket. The level of a rate is in nanoseconds: how long ago (negative)
-- or how far ahead its theoretical arrival time is; AT, UNTIL and LIFE are in microseconds. The level of a day is its
-- count, and AT is the day. `b:kept` is no bucket: its LEVEL is for how many microseconds the key is kept from AT on.
--
-- ARGV: incarnation, sequence, life, and ten numbers for each bucket: capacity (0: not limited by this node), period,
-- spent, owed, age, keep, need, want, known level, known at. Then 1 if the key is known to be valid, or 0.
-- Answer: flags, time, and four numbers for each bucket: held, left, level, held by all.

local NAMES = { 'main', 'write', 'candidate', 'daily', 'in_flight' }
local DAILY = 4
local REPEATED, LOST, GARBAGE = 1, 2, 4
-- A level below this one is of a bucket that has been full for long.
local RESET = -1 -- the known level of a day that is given back
local FULL = -1000000000000
local DAY_US = 86400000000
-- How long a process is remembered that holds nothing. Where it is not, this server has lost it.
local REMEMBERED_US = 60000000
-- The same for a key that no process is known to have proven: strangers may try any number of keys.
local UNPROVEN_US = 1000000
local KEY = KEYS[1]

local function text(number) return string.format('%.0f', number) end

-- A level of one rate under another one: what is available stays available, up to the new burst.
local function under(level, capacity, period, new_capacity, new_period)
  local available = math.max(0, capacity - math.max(0, level) / period)
  return math.max(0, math.ceil((new_capacity - available) * new_period))
end

-- The level after so many requests more, which leave at most an empty bucket: those of a larger limit that was in force
-- before, or that were admitted without this server, may be more than it holds.
local function charge(level, requests, capacity, period)
  return math.max(level, math.min(level + requests * period, capacity * period))
end

-- The whole numbers of a field, if there are as many as there must be.
local function numbers(field, count)
  local list = {}
  for word in string.gmatch(field, '%S+') do
    if #word > 30 or not string.find(word, '^%-?%d+$') then return nil end
    list[#list + 1] = tonumber(word)
  end
  return #list == count and list or nil
end

local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local incarnation, sequence, life = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local is_proven = ARGV[4 + 10 * #NAMES] == '1'
local flags, changed = 0, {}

local function replace_garbage(field)
  redis.call('HDEL', KEY, field)
  flags = GARBAGE
end

local fields = redis.pcall('HGETALL', KEY)
if fields.err then
  redis.call('DEL', KEY)
  fields, flags = {}, GARBAGE
end
local buckets, holds = {}, {}
for i = 1, #fields, 2 do
  local field, value = fields[i], fields[i + 1]
  local holder, name = string.match(field, '^h:(%x+)$'), string.match(field, '^b:([a-z_]+)$')
  if holder then
    holds[holder] = numbers(value, 1 + 3 * #NAMES)
    if not holds[holder] then replace_garbage(field) end
  elseif name then
    buckets[name] = numbers(value, 4)
    if not buckets[name] then replace_garbage(field) end
  else
    replace_garbage(field)
  end
end

-- A clock that was set back over a midnight gives no second day: the day that was begun goes on. A day that is further
-- ahead comes from a clock that was wrong.
local today = math.floor(now / DAY_US)
local last_day = buckets.daily and buckets.daily[2]
if last_day == today + 1 then today = last_day end
local midnight = (today + 1) * DAY_US

local own = holds[incarnation]
local is_repeated = own ~= nil and own[1] >= sequence
local is_lost = not is_repeated and sequence > 1 and (own == nil or own[1] < sequence - 1)
if is_repeated then flags = flags + REPEATED end
if is_lost then flags = flags + LOST end
if not own then
  own = { sequence }
  for i = 1, 3 * #NAMES do own[1 + i] = 0 end
  holds[incarnation] = own
end

local remembered = is_proven and REMEMBERED_US or UNPROVEN_US
for holder in pairs(holds) do
  if holder ~= incarnation then remembered = REMEMBERED_US end
end

local answer = { 0, now }
local ttl = life + remembered
local kept = buckets.kept and buckets.kept[1] - math.max(0, now - buckets.kept[2]) or 0

for i, name in ipairs(NAMES) do
  local arg = {}
  for j = 1, 10 do arg[j] = tonumber(ARGV[3 + 10 * (i - 1) + j]) end
  local capacity, period, spent, owed, age, keep, need, want, known, known_at = unpack(arg)
  local is_rate = i < DAILY
  local stored, at = buckets[name], 3 * i - 1
  if is_rate then
    period = math.max(1, period)
    -- A node that does not limit this bucket still charges what it spent before a change of its configuration.
    if capacity == 0 and stored then capacity, period = stored[3], stored[4] end
  end

  -- The level now. A clock that was set back drains nothing. What was spent under another rate is charged under that.
  local level = is_rate and FULL or 0
  local new_capacity, new_period = capacity, period
  if stored and is_rate then
    level = stored[1] - math.max(0, now - stored[2]) * 1000
    capacity, period = stored[3], math.max(1, stored[4])
  elseif i == DAILY and last_day == today then
    level = stored[1]
  end

  -- Leases that have ended count as spent at their end.
  local held_by_others = 0
  for holder, hold in pairs(holds) do
    local held, ends, lasts = hold[at], hold[at + 1], hold[at + 2]
    if ends > now + lasts then ends = now + lasts end -- the clock was set back
    if held > 0 and ends <= now then
      if is_rate then
        level = charge(math.max(level, (ends - now) * 1000), held, capacity, period)
      elseif i == DAILY and last_day == today then
        level = level + held
      end
      held = 0
      changed[holder] = true
    end
    hold[at], hold[at + 1] = held, ends
    if holder ~= incarnation then held_by_others = held_by_others + held end
  end

  local held = own[at]
  if not is_repeated then
    if is_lost then
      -- What this server holds for it and it does not, it may have reported to the server that was lost.
      held = math.max(held, spent + keep)
      spent = held - keep
      if is_rate and known_at > 0 then
        local drained = known - math.max(0, now - known_at) * 1000
        if capacity ~= new_capacity or period ~= new_period then
          drained = under(drained, new_capacity, new_period, capacity, period)
        end
        level = math.max(level, math.min(drained, capacity * period))
      end
    end
    if i == DAILY and known_at == today and (is_lost or last_day ~= today) then
      level = math.max(level, known - held_by_others)
    end
    local charged = math.min(spent, held)
    if i == DAILY and known == RESET and known_at == today then level, charged = 0, 0 end
    if is_rate then
      if charged > 0 then level = charge(math.max(level, -age * 1000), charged, capacity, period) end
    elseif i == DAILY then
      level = level + charged + owed
    end
    held = math.max(0, math.min(keep, held - charged))
  end

  if capacity ~= new_capacity or period ~= new_period then
    -- The key is known for as long as the old burst would take to come back: a burst that is lowered and raised again
    -- must not be full.
    kept = math.max(kept, math.max(level, capacity * period) / 1000 + life + REMEMBERED_US)
    level = under(level, capacity, period, new_capacity, new_period)
    capacity, period = new_capacity, new_period
  end

  if not is_repeated then
    -- What was admitted without this server is charged under the rate of now.
    if owed > 0 and is_rate then
      level = charge(math.max(level, 0), owed, capacity, period)
    end
    local free = capacity - held_by_others - held
    if is_rate then
      free = math.floor((capacity * period - math.max(0, level)) / period) - held_by_others - held
    elseif i == DAILY then
      free = free - level
    end
    if free > 0 then
      local granted = math.min(need, free)
      held = held + granted + math.min(want, math.floor((free - granted) / 2))
    end
    own[at], own[at + 1], own[at + 2] = held, now + life, life
    if i == DAILY and own[at + 1] > midnight then own[at + 1] = midnight end
  end

  level = math.max(level, FULL)
  if capacity > 0 then
    local level_at = i == DAILY and today or now
    redis.call('HSET', KEY, 'b:' .. name,
      text(level) .. ' ' .. text(level_at) .. ' ' .. text(capacity) .. ' ' .. text(period))
    -- What is held counts as spent when its lease ends, also that of a process that has died.
    local to_come_back = math.max(0, level) + (own[at] + held_by_others) * period
    if is_rate then ttl = math.max(ttl, to_come_back / 1000 + life + remembered) end
    -- Strangers may try any number of keys, which are not to be kept for a day.
    if i == DAILY and is_proven then kept = math.max(kept, midnight - now) end
  end
  answer[#answer + 1] = own[at]
  answer[#answer + 1] = math.max(0, own[at + 1] - now)
  answer[#answer + 1] = math.min(level, 9000000000000000000)
  answer[#answer + 1] = own[at] + held_by_others
end

if not is_repeated then own[1] = sequence end
changed[incarnation] = true
for holder in pairs(changed) do
  local words = {}
  for i, number in ipairs(holds[holder]) do words[i] = text(number) end
  redis.call('HSET', KEY, 'h:' .. holder, table.concat(words, ' '))
end
for holder, hold in pairs(holds) do
  local last, held = 0, 0
  for i = 1, #NAMES do
    held, last = held + hold[3 * i - 1], math.max(last, hold[3 * i])
  end
  if holder ~= incarnation and held == 0 and last + REMEMBERED_US < now then
    redis.call('HDEL', KEY, 'h:' .. holder)
  end
end
if kept > 0 then redis.call('HSET', KEY, 'b:kept', text(kept) .. ' ' .. text(now) .. ' 0 0') end
redis.call('PEXPIRE', KEY, text(math.ceil(math.max(ttl, kept) / 1000)))
answer[1] = flags
return answer
