select a.c_id, b.c_id as other from customer a join customer b on a.c_last = b.c_last and a.c_id
<> b.c_id and a.c_since between b.c_since - interval 1 day and b.c_since + interval 1 day
