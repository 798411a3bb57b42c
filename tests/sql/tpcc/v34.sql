select count(*) as n, sum(l2.ol_quantity) as q from warehouse w1 join district d1 on d1.d_w_id =
w1.w_id join warehouse w2 on w2.w_id = d1.d_w_id join district d2 on d2.d_w_id = w2.w_id and
d2.d_id = d1.d_id join customer c1 on c1.c_w_id = w1.w_id and c1.c_d_id = d1.d_id and c1.c_id = 2
join orders o1 on o1.o_c_id = c1.c_id and o1.o_w_id = c1.c_w_id and o1.o_d_id = d2.d_id left join
order_line l1 on l1.ol_o_id = o1.o_id and l1.ol_w_id = w1.w_id and l1.ol_d_id = d1.d_id and
l1.ol_number = 1 left join order_line l2 on l2.ol_o_id = o1.o_id and l2.ol_w_id = w2.w_id and
l2.ol_d_id = d2.d_id and l2.ol_number = 2 left join item i1 on i1.i_id = l1.ol_i_id and i1.i_im_id
= 1 left join item i2 on i2.i_id = l2.ol_i_id and i2.i_im_id = 1 left join stock s1 on s1.s_i_id =
i1.i_id and s1.s_w_id = w1.w_id and s1.s_order_cnt = 3 left join stock s2 on s2.s_i_id = i2.i_id
and s2.s_w_id = w2.w_id and s2.s_order_cnt = 3 left join history h1 on h1.h_c_id = c1.c_id and
h1.h_w_id = w1.w_id and h1.h_d_id = d1.d_id left join new_order n1 on n1.no_o_id = o1.o_id and
n1.no_w_id = w1.w_id and n1.no_d_id = d1.d_id left join warehouse w3 on w3.w_id =
l1.ol_supply_w_id and w3.w_id = 1 left join warehouse w4 on w4.w_id = l2.ol_supply_w_id and
w4.w_id = 1 where w1.w_id = 1 and d1.d_id = 1
