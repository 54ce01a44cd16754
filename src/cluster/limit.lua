-- Decides on n requests of one key at once, by this server's own clock: all of a request's limits are charged, or none.
-- KEYS[1] is a hash: `rate1`, `rate2` and so on have "TAT PERIOD BURST MOST", `day` has "DAY COUNT". TAT is when
-- everything has come back, in microseconds; PERIOD is in nanoseconds; MOST is the largest burst that was ever in force.
-- ARGV: n, whether the day is given back, the most of a day (0: any), the day and count that the node knows; then for each
-- rate its period and burst (0: no limit), and whether it counts these requests.
-- Answer: how many are let in, the day, its count, the time in seconds, and what each rate owes (nanoseconds).
local RATES_BEGIN, ARGUMENTS_OF_A_RATE = 5, 3
local arg = {}
for n = 1, #ARGV do arg[n] = tonumber(ARGV[n]) end
local n, resets, daily = arg[1], arg[2] == 1, arg[3]
local fields = { 'day' }
for at = 1, (#arg - RATES_BEGIN) / ARGUMENTS_OF_A_RATE do fields[at + 1] = 'rate' .. at end
local clock = redis.call('TIME')
local now, today = clock[1] * 1000000 + clock[2], math.floor(clock[1] / 86400)
local hash = redis.pcall('HMGET', KEYS[1], unpack(fields))
if hash.err then return redis.call('DEL', KEYS[1]) and hash end -- something else stood there
local function numbers(text)
  local list = {}
  for word in string.gmatch(text or '', '%S+') do list[#list + 1] = tonumber(word) or 0 end
  return unpack(list)
end
-- A rate as it is now; nil: there is none. Another rate than the stored one: what is available stays available, up to the new burst.
local function rate(text, period, burst)
  local tat, before, held, most = numbers(text)
  if not most or before == 0 then
    return period > 0 and { owed = 0, period = period, burst = burst, most = burst } or nil
  end
  local owed = math.min(math.max(tat - now, 0) * 1000, before * held)
  if period == 0 then period, burst = before, held end
  if period ~= before or burst ~= held then
    owed = math.ceil(math.max(burst - held + owed / before, 0) * period)
  end
  return { owed = owed, period = period, burst = burst, most = math.max(most, burst) }
end
local day, count = numbers(hash[1])
if day == today + 1 then today = day end -- a clock that was set back over midnight gives nobody a new day
if day ~= today or not count then count = arg[4] == today and arg[5] or 0 end
if resets then count = 0 end
local rates, charged, owed = {}, {}, {}
for at = 1, #fields - 1 do
  local first = RATES_BEGIN + (at - 1) * ARGUMENTS_OF_A_RATE
  local period, burst, counts = arg[first + 1], arg[first + 2], arg[first + 3]
  rates[at] = rate(hash[at + 1], period, burst)
  if period > 0 and counts == 1 then charged[at] = rates[at] end
end
for _, of in pairs(charged) do n = math.min(n, math.floor((of.period * of.burst - of.owed) / of.period)) end
if daily > 0 then n = math.min(n, daily - count) end
n = math.max(n, 0)
for _, of in pairs(charged) do of.owed = of.owed + n * of.period end
if daily > 0 then count = count + n end
local keep = 1000 -- milliseconds, until everything has come back and the day is over
for at, of in pairs(rates) do
  local tat = now + math.ceil(of.owed / 250) / 4 -- what a number holds exactly, and never too early
  redis.call('HSET', KEYS[1], fields[at + 1], string.format('%.2f %.0f %.0f %.0f', tat, of.period, of.burst, of.most))
  keep = math.max(keep, 1000 + (of.owed + (of.most - of.burst) * of.period) / 1000000)
end
if count > 0 or resets then
  redis.call('HSET', KEYS[1], 'day', string.format('%.0f %.0f', today, count))
  keep = math.max(keep, (today + 1) * 86400000 - now / 1000)
end
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.ceil(keep)))
for at = 1, #fields - 1 do owed[at] = rates[at] and rates[at].owed or 0 end
return { n, today, count, tonumber(clock[1]), owed }
