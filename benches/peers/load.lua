-- The requests that wrk sends. LOAD_KEYS: the keys. LOAD_WRITES: the percentage of setPoints. LOAD_CLOSE=1: each
-- request asks to close its connection. LOAD_COUNT: if it is not 0, each request is a getPoints of the next one of so
-- many members after LOAD_FIRST, and of the last one in the end; with LOAD_RANDOM=1 each is for any of them.
local keys = {}
for key in os.getenv("LOAD_KEYS"):gmatch("%S+") do keys[#keys + 1] = key end
local writes, first = tonumber(os.getenv("LOAD_WRITES")), tonumber(os.getenv("LOAD_FIRST"))
local count, is_random = tonumber(os.getenv("LOAD_COUNT")), os.getenv("LOAD_RANDOM") == "1"
local MEMBERS, REQUESTS = 2000, 20000

local function header(operation, key, length)
  local connection = os.getenv("LOAD_CLOSE") == "1" and "Connection: close\r\n" or ""
  return "POST /" .. operation .. " HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: " .. key .. "\r\n" .. connection ..
    "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: " .. length .. "\r\n\r\n"
end

local function with_body(operation, key, body) return header(operation, key, #body) .. body end

-- A few keys and members have most of the requests: a random number to a power is seldom large.
local function skewed(n, power) return math.floor(n * math.random() ^ power) + 1 end

local requests, next = {}, 0
function init()
  math.randomseed(1)
  for n = 1, REQUESTS do
    local key, body = keys[skewed(#keys, 2)], "memberID=19055180366911" .. (1000 + skewed(MEMBERS, 3))
    local of_100 = math.random(100)
    if math.random(100) <= writes then
      requests[n] = with_body("setPoints", key, body .. "&amount=" .. math.random(5000))
    else
      requests[n] = with_body(of_100 > 90 and "getReviews" or of_100 > 75 and "getWarns" or "getPoints", key, body)
    end
  end
  if count ~= 0 then
    for n, key in ipairs(keys) do requests[n] = header("getPoints", key, 9 + 18) end
  end
end

function request()
  next = next + 1
  if count == 0 then return requests[next % REQUESTS + 1] end
  local member = first + (is_random and math.random(count) or math.min(next, count))
  return requests[member % #keys + 1] .. string.format("memberID=19%016.0f", member)
end

function done(summary, latency)
  local e = summary.errors
  print(string.format('RESULT {"requests": %d, "seconds": %.6f, "errors": %d, "p50": %d, "p99": %d}', summary.requests,
    summary.duration / 1e6, e.status + e.connect + e.read + e.write + e.timeout, latency:percentile(50),
    latency:percentile(99)))
end
