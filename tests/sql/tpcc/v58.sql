select c_id, k, v from customer unpivot (v for k in (c_payment_cnt, c_delivery_cnt))
