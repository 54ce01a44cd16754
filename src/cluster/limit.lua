-- Decides on n requests of one key at once, by this server's own clock: all of a request's limits are charged, or none.
-- KEYS[1] is a hash: `main` and `write` have "TAT PERIOD BURST MOST", `day` has "DAY COUNT". TAT is when everything has
-- come back, in microseconds; PERIOD is in nanoseconds, and MOST is the largest burst that was in force.
-- ARGV: n, whether they are writes, whether the day is given back, period and burst of main and of write, the number of
-- the day (0 each: no limit), and the day and the count that the node knows.
-- Answer: how many are let in, what main and write owe (nanoseconds), the day, its count, the time in seconds, and 1 if
-- something else stood there.
local arg = {}
for n = 1, #ARGV do arg[n] = tonumber(ARGV[n]) end
local n, is_write, resets, daily = arg[1], arg[2] == 1, arg[3] == 1, arg[8]
local clock = redis.call('TIME')
local now, today = clock[1] * 1000000 + clock[2], math.floor(clock[1] / 86400)
local garbage = 0
local hash = redis.pcall('HMGET', KEYS[1], 'main', 'write', 'day')
if hash.err then
  redis.call('DEL', KEYS[1])
  hash, garbage = {}, 1
end
local function numbers(text, count)
  local list = {}
  for word in string.gmatch(text or '', '%S+') do
    local number = tonumber(word)
    if number and number >= 0 and number < 9e15 then list[#list + 1] = number end
  end
  if #list == count then return unpack(list) end
  if text then garbage = 1 end
end
-- A rate as it is now. Another rate than the stored one: what is available stays available, up to the new burst.
local function rate(text, period, burst)
  local tat, before, held, most = numbers(text, 4)
  if not tat or before == 0 then return period > 0 and { owed = 0, period = period, burst = burst, most = burst } end
  local owed = math.min(math.max(tat - now, 0) * 1000, before * held)
  if period == 0 then period, burst = before, held end
  if period ~= before or burst ~= held then
    owed = math.ceil(math.max(burst - held + owed / before, 0) * period)
  end
  return { owed = owed, period = period, burst = burst, most = math.max(most, burst) }
end
local main, write = rate(hash[1], arg[4], arg[5]), rate(hash[2], arg[6], arg[7])
local day, count = numbers(hash[3], 2)
if day == today + 1 then today = day end -- a clock that was set back over midnight gives nobody a new day
if day ~= today then count = arg[9] == today and arg[10] or 0 end
if resets then count = 0 end
local charged = { main, is_write and arg[6] > 0 and write or nil }
for _, of in pairs(charged) do n = math.min(n, math.floor((of.period * of.burst - of.owed) / of.period)) end
if daily > 0 then n = math.min(n, daily - count) end
n = math.max(n, 0)
for _, of in pairs(charged) do of.owed = of.owed + n * of.period end
if daily > 0 then count = count + n end
local keep = 1000 -- milliseconds, until everything has come back and the day is over
for name, of in pairs({ main = main, write = write or nil }) do
  local tat = now + math.ceil(of.owed / 250) / 4 -- what a number holds exactly, and never too early
  redis.call('HSET', KEYS[1], name, string.format('%.2f %.0f %.0f %.0f', tat, of.period, of.burst, of.most))
  keep = math.max(keep, 1000 + (of.owed + (of.most - of.burst) * of.period) / 1000000)
end
if count > 0 or resets then
  redis.call('HSET', KEYS[1], 'day', string.format('%.0f %.0f', today, count))
  keep = math.max(keep, (today + 1) * 86400000 - now / 1000)
end
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.ceil(keep)))
return { n, main.owed, write and write.owed or 0, today, count, tonumber(clock[1]), garbage }
