select s_w_id, s_i_id, s_quantity, ntile(4) over (partition by s_w_id order by s_quantity, s_i_id,
s_ytd, s_order_cnt) as quarter, percent_rank() over (partition by s_w_id order by s_quantity) as p
from stock
