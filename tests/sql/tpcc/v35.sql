select a.i_id, b.i_id as other from item a join item b on a.i_price = b.i_price and a.i_id <
b.i_id
