select s_i_id, min(s_quantity) as least from stock group by s_i_id
