select c_state, sum(c_balance) as b from customer where (c_state, c_w_id) in (select w_state, w_id
from warehouse) group by c_state
