select d_w_id, corr(d_tax, d_ytd + d_id * d_id) as c, regr_slope(d_ytd, d_tax) as s from district
group by d_w_id having var_pop(d_tax) > 0 and var_pop(d_ytd) > 0 and count(d_ytd) > 50
