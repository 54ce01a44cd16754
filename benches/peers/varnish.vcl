# Varnish with the modules of Debian's varnish-modules. They hash a body but cannot take a member out of it, so a
# setPoints drops all answers of its key. It has no TLS.
vcl 4.1;

import bodyaccess;
import std;
import vsthrottle;
import xkey;

backend origin {
    .host = "127.0.0.1";
    .port = "@ORIGIN";
}

sub vcl_recv {
    if (!req.http.Authorization) { return (synth(401, "No api key provided")); }
    if (req.http.Authorization !~ "^(?:@KEYS)$") { return (synth(401, "Incorrect API key")); }
    if (vsthrottle.is_denied(req.http.Authorization, 1000000, 1s)) { return (synth(429, "Too many requests")); }
    if (!std.cache_req_body(4KB)) { return (synth(413, "Body too large")); }
    if (req.url == "/setPoints") { return (pass); }
    return (hash);
}

sub vcl_hash {
    hash_data(req.url);
    hash_data(req.http.Authorization);
    bodyaccess.hash_req_body();
    return (lookup);
}

sub vcl_backend_fetch {
    set bereq.method = "POST";
}

sub vcl_backend_response {
    set beresp.ttl = 10m;
    set beresp.http.xkey = bereq.http.Authorization;
}

sub vcl_deliver {
    unset resp.http.xkey;
    if (req.url == "/setPoints") { set req.http.Purged = xkey.purge(req.http.Authorization); }
}
