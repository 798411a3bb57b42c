select ol_w_id, ol_o_id, ol_number, ol_amount, sum(ol_amount) over (partition by ol_w_id, ol_o_id
order by ol_number, ol_i_id, ol_d_id, ol_amount, ol_quantity, ol_supply_w_id rows between 1
preceding and 1 following) as near from order_line
