select w_state, c_state, count(*) as n from warehouse join customer on c_w_id = w_id group by
rollup (w_state, c_state)
