-- Ends pauses. KEYS: the pauses. ARGV: now. Answers: now.
for i = 1, #KEYS do redis.call('DEL', KEYS[i]) end
return { read_clock(ARGV[1]) }
