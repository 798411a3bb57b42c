with revenue as (select ol_supply_w_id as w, ol_i_id as i, sum(ol_amount) as r from order_line
group by ol_supply_w_id, ol_i_id) select w, i, r from revenue where r = (select max(r) from
revenue)
