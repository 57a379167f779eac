if not run_id then run_id = string.match(seen, ' (.*)$') end
