select ol_supply_w_id, count(*) as remote from order_line where ol_supply_w_id <> ol_w_id group by
ol_supply_w_id
