select i_id, i_price from item where i_price > (select avg(i_price) from item)
