-- The tables of TPC-C.
CREATE TABLE warehouse (
    w_id int, w_name varchar(10), w_street_1 varchar(20), w_city varchar(20), w_state char(2),
    w_zip char(9), w_tax decimal(4,4), w_ytd decimal(12,2)
);

CREATE TABLE district (
    d_id int, d_w_id int, d_name varchar(10), d_street_1 varchar(20), d_city varchar(20),
    d_state char(2), d_zip char(9), d_tax decimal(4,4), d_ytd decimal(12,2), d_next_o_id int
);

CREATE TABLE customer (
    c_id int, c_d_id int, c_w_id int, c_first varchar(16), c_middle char(2), c_last varchar(16),
    c_city varchar(20), c_state char(2), c_since timestamp, c_credit char(2),
    c_credit_lim decimal(12,2), c_discount decimal(4,4), c_balance decimal(12,2),
    c_ytd_payment decimal(12,2), c_payment_cnt int, c_delivery_cnt int, c_data varchar(500)
);

CREATE TABLE history (
    h_c_id int, h_c_d_id int, h_c_w_id int, h_d_id int, h_w_id int, h_date timestamp,
    h_amount decimal(6,2), h_data varchar(24)
);

CREATE TABLE new_order (no_o_id int, no_d_id int, no_w_id int);

CREATE TABLE orders (
    o_id int, o_d_id int, o_w_id int, o_c_id int, o_entry_d timestamp, o_carrier_id int,
    o_ol_cnt int, o_all_local int
);

CREATE TABLE order_line (
    ol_o_id int, ol_d_id int, ol_w_id int, ol_number int, ol_i_id int, ol_supply_w_id int,
    ol_delivery_d timestamp, ol_quantity int, ol_amount decimal(6,2), ol_dist_info char(24)
);

CREATE TABLE item (
    i_id int, i_im_id int, i_name varchar(24), i_price decimal(5,2), i_data varchar(50)
);

CREATE TABLE stock (
    s_i_id int, s_w_id int, s_quantity int, s_dist_01 char(24), s_ytd int, s_order_cnt int,
    s_remote_cnt int, s_data varchar(50)
);
