select w_id, d from warehouse lateral view explode(array(w_city, w_state, w_zip)) e as d
