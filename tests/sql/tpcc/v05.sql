select no_w_id, no_d_id, max(no_o_id) - min(no_o_id) + 1 - count(*) as gaps from new_order group
by no_w_id, no_d_id having count(*) > 1
