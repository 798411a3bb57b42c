select w_id, w_ytd, (select sum(d_ytd) from district where d_w_id = w_id) as by_district from
warehouse where w_id is not null
