select count(*) as n from warehouse w1 join district d1 on d1.d_w_id = w1.w_id join customer c1 on
c1.c_w_id = w1.w_id and c1.c_d_id = d1.d_id and c1.c_id = 1 left join orders o1 on o1.o_c_id =
c1.c_id and o1.o_w_id = w1.w_id and o1.o_d_id = d1.d_id left join order_line l1 on l1.ol_o_id =
o1.o_id and l1.ol_w_id = w1.w_id and l1.ol_d_id = d1.d_id and l1.ol_number = 1 left join item i1
on i1.i_id = l1.ol_i_id and i1.i_im_id = 2 left join stock s1 on s1.s_i_id = i1.i_id and s1.s_w_id
= w1.w_id left join history h1 on h1.h_c_id = c1.c_id and h1.h_w_id = w1.w_id and h1.h_d_id =
d1.d_id left join new_order n1 on n1.no_o_id = o1.o_id and n1.no_w_id = w1.w_id and n1.no_d_id =
d1.d_id where w1.w_id = 1
