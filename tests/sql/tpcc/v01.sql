select w_id, w_name, sum(d_ytd) as total, count(*) as districts from warehouse join district on
d_w_id = w_id group by w_id, w_name
