{# Each run refreshes the model by the changes of its tables; --full-refresh rebuilds it. #}
{% materialization materialized_view, adapter='sparkdiff' %}
  {%- set target = this.incorporate(type='table') -%}
  {{ run_hooks(pre_hooks) }}
  {%- set report = adapter.refresh_view(
      target, sql, config.get('store'), config.get('policy', 'strict'), config.get('history'),
      config.get('log'), model.description, should_full_refresh()) -%}
  {% do store_raw_result(
      name='main', message=report.message, code='REFRESH', rows_affected=report.rows) %}
  {% do persist_docs(target, model) %}
  {{ run_hooks(post_hooks) }}
  {{ return({'relations': [target]}) }}
{% endmaterialization %}
