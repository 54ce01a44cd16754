-- Asks for the one page that the URL names, and says how many answers came.
function done(summary, latency)
  local e = summary.errors
  print(string.format('RESULT {"requests": %d, "seconds": %.6f, "errors": %d}', summary.requests, summary.duration / 1e6,
    e.status + e.connect + e.read + e.write + e.timeout))
end
